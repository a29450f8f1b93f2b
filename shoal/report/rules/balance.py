"""LoadBalancing: do all GPUs of all hosts have the same to do? Every pair is compared, also across hosts."""

import numpy as np
import polars as pl

from shoal.report.observed import GPU, Observed
from shoal.report.outcome import Evidence, Outcome
from shoal.report.rules import parameters as p
from shoal.report.rules.hardware import NO_GPU, too_few

_BINS = 50  # of two points each; the last holds 98 to 100
_LISTED = 20


def load_balancing(seen: Observed, given: p.LoadBalancing) -> Outcome:
    """Compare the histograms of utilisation of each two GPUs by their Jensen-Shannon distance."""
    about, values = "GPUs do not have the same to do", seen.values(GPU)
    gpus, shares, longest = [], [], 0
    for (node, gpu), frame in values.sort("NodeId", "Name").group_by("NodeId", "Name", maintain_order=True):
        longest = max(longest, frame.height)
        if frame.height >= given.patience:
            bins = (frame["Value"].clip(0, 100) / (100 / _BINS)).cast(pl.Int64).clip(0, _BINS - 1).to_numpy()
            gpus.append((str(node), str(gpu)))
            shares.append(np.bincount(bins, minlength=_BINS) / frame.height)
    numbers = given.numbers()
    if len(gpus) < 2:
        why = NO_GPU if not longest else too_few(longest, given.patience) if not gpus else "there is one GPU alone"
        return Outcome("LoadBalancing", about, numbers, datapoints=values.height, why_not=why)
    distances = {(i, j): distance(shares[i], shares[j]) for i in range(len(gpus)) for j in range(i + 1, len(gpus))}
    apart = sorted((pair for pair in distances if distances[pair] > given.threshold), key=lambda pair: -distances[pair])
    means = {
        f"{node} {gpu}": float(np.dot(share, np.arange(_BINS) * 2 + 1))
        for (node, gpu), share in zip(gpus, shares, strict=True)
    }
    evidence = []
    for pair in apart[:_LISTED]:
        names = [" ".join(gpus[one]) for one in pair]
        text = (
            f"{names[0]} (mean {means[names[0]]:.0f} %) and {names[1]} ({means[names[1]]:.0f} %):"
            f" distance {distances[pair]:.2f}"
        )
        evidence.append(Evidence(text, gpus[pair[1]][0], gpus[pair[1]][1]))
    return Outcome(
        "LoadBalancing",
        about,
        numbers,
        datapoints=values.height,
        violations=len(apart),
        triggered=1 if apart else 0,
        summary=f"{len(apart)} of {len(distances)} pairs of GPUs differ by more than {given.threshold:g}"
        if apart
        else "",
        advice="give each rank the same number of samples of the same size (DistributedSampler,"
        " buckets by length), and no rank"
        " extra work (evaluation, logging, checkpoints)",
        evidence=tuple(evidence),
        details={"mean_utilization": {name: round(mean, 1) for name, mean in means.items()}},
    )


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the Jensen-Shannon distance of two histograms whose bins sum up to 1: natural logarithm, 0 to 0.8326."""
    middle = (one + other) / 2
    return float(np.sqrt(max(0.0, (_divergence(one, middle) + _divergence(other, middle)) / 2)))


def _divergence(one: np.ndarray, other: np.ndarray) -> float:
    there = one > 0
    return float(np.sum(one[there] * np.log(one[there] / other[there])))
