"""Rules over what cores and GPUs did: bottlenecks, low utilisation, growing memory. Definitions: docs/report.md."""

import polars as pl

from shoal.report.observed import BUSY, GPU, GPU_MEMORY, IOWAIT, Observed, number
from shoal.report.outcome import Evidence, Outcome, intervals
from shoal.report.rules import parameters as p

_JOIN_S = 30.0  # firing moments closer than this are one interval
NO_GPU = "no GPU was measured"


def cpu_bottleneck(seen: Observed, given: p.CPUBottleneck) -> Outcome:
    """A GPU waits while more than `core_share` of the host's cores are busy."""
    hot = (pl.col("Value") > given.cpu_threshold).mean() * 100 > given.core_share
    return _waiting(
        seen,
        given,
        "CPUBottleneck",
        "a GPU is idle while the processors are busy",
        seen.values(BUSY).group_by("NodeId", "Snapshot").agg(hot.alias("cause")),
        f"a GPU below {given.gpu_threshold:g} % while over {given.core_share:g} % of the cores were above"
        f" {given.cpu_threshold:g} %",
        "move preprocessing off the critical path: more cores a GPU, DataLoader(num_workers=...) up"
        " to the number of cores,"
        " preprocessed data, or transforms on the GPU; leave cores to the collectives (SMDDP_CPUS)",
    )


def io_bottleneck(seen: Observed, given: p.IOBottleneck) -> Outcome:
    """A GPU waits while a core waits for input or output."""
    return _waiting(
        seen,
        given,
        "IOBottleneck",
        "a GPU is idle while a core waits for storage",
        seen.values(IOWAIT)
        .group_by("NodeId", "Snapshot")
        .agg((pl.col("Value") > given.io_threshold).any().alias("cause")),
        f"a GPU below {given.gpu_threshold:g} % while a core waited for I/O more than"
        f" {given.io_threshold:g} % of the time",
        "read larger files (tar, Parquet) in sequence, prefetch (DataLoader(prefetch_factor=...)),"
        " use InputMode FastFile, or"
        " provision faster storage (`shoal advise --dataset ... --epoch-seconds ...`)",
    )


def _waiting(
    seen: Observed,
    given: p.CPUBottleneck | p.IOBottleneck,
    rule: str,
    about: str,
    causes: pl.DataFrame,
    what: str,
    advice: str,
) -> Outcome:
    """Count the snapshots of each host in which a GPU is idle and the cause is there."""
    numbers = given.numbers()
    gpus = seen.values(GPU)
    if gpus.is_empty():
        return Outcome(rule, about, numbers, why_not=NO_GPU)
    idle = gpus.group_by("NodeId", "Snapshot").agg(
        pl.col("Timestamp").min(), (pl.col("Value") < given.gpu_threshold).any().alias("idle")
    )
    both = idle.join(causes, on=["NodeId", "Snapshot"], how="left").with_columns(pl.col("cause").fill_null(value=False))
    evidence, shares, violations, longest = [], {}, 0, 0
    for (node,), frame in both.sort("NodeId", "Snapshot").group_by("NodeId", maintain_order=True):
        violating = (frame["idle"] & frame["cause"]).to_list()
        count, longest = sum(violating), max(longest, len(violating))
        violations += count
        if len(violating) < given.patience:
            continue
        shares[str(node)] = share = 100 * count / len(violating)
        if share > given.threshold:
            spans = intervals(frame["Timestamp"].to_list(), violating, _JOIN_S)
            text = f"{count} of {len(violating)} samples ({share:.0f} %): {what}"
            evidence += [Evidence(text, str(node), began=began, ended=ended) for began, ended in spans]
    fired = [node for node, share in shares.items() if share > given.threshold]
    return Outcome(
        rule,
        about,
        numbers,
        datapoints=both.height,
        violations=violations,
        triggered=len(fired),
        summary=f"on {', '.join(fired)}: {what}, more than {given.threshold:g} % of the time" if fired else "",
        advice=advice,
        evidence=tuple(evidence),
        details={"percent_of_samples": {node: round(share, 1) for node, share in shares.items()}},
        why_not="" if shares else too_few(longest, given.patience),
    )


def low_gpu_utilization(seen: Observed, given: p.LowGPUUtilization) -> Outcome:
    """A GPU is low (p95) or fluctuates (high p95, low p5) in most windows."""
    p95, p5 = pl.col("p95"), pl.col("p5")
    windows = _windows(seen.values(GPU), given.window, given.patience).with_columns(
        (p95 < given.threshold_p95).alias("low"),
        ((p95 > given.threshold_p95) & (p5 < given.threshold_p5)).alias("moves"),
    )
    windows = windows.with_columns((pl.col("low") | pl.col("moves")).alias("violates"))
    return _by_gpu(
        seen,
        windows,
        Outcome(
            "LowGPUUtilization",
            "a GPU has little to do, or has to wait again and again",
            given.numbers(),
            summary=f"p95 below {given.threshold_p95:g} %, or above it with p5 below {given.threshold_p5:g} %",
            advice="see whether CPUBottleneck, IOBottleneck, DataLoadingBound or CommunicationBound"
            " fires too: that is the"
            " cause; if none does, a larger batch a GPU, or a smaller instance",
        ),
        given.patience,
    )


def batch_size(seen: Observed, given: p.BatchSize) -> Outcome:
    """Processors, GPU and GPU memory are all low: the batch could be larger."""
    patience, window = given.patience, given.window
    gpus = _windows(seen.values(GPU), window, patience)
    memory = _windows(seen.values(GPU_MEMORY), window, patience).select("NodeId", "Name", "Window", memory="p95")
    busy = seen.values(BUSY).group_by("NodeId", "Snapshot").agg(pl.col("Timestamp").min(), pl.col("Value").mean())
    cores = _windows(busy.with_columns(Name=pl.lit("")), window, patience).select("NodeId", "Window", cpu="p95")
    windows = gpus.join(memory, on=["NodeId", "Name", "Window"]).join(cores, on=["NodeId", "Window"])
    windows = windows.with_columns(
        violates=(pl.col("p95") < given.gpu_threshold_p95)
        & (pl.col("memory") < given.gpu_memory_threshold_p95)
        & (pl.col("cpu") < given.cpu_threshold_p95)
    )
    return _by_gpu(
        seen,
        windows,
        Outcome(
            "BatchSize",
            "processors, GPU and its memory are all far from full",
            given.numbers(),
            summary=f"p95 below {given.cpu_threshold_p95:g} % (CPU), {given.gpu_threshold_p95:g} % (GPU) and"
            f" {given.gpu_memory_threshold_p95:g} % (its memory)",
            advice="raise the batch a GPU, and the learning rate with it (`shoal advise"
            " --batch-per-device ...`), or take a"
            " smaller instance",
        ),
        patience,
    )


def _windows(values: pl.DataFrame, window: float, patience: float) -> pl.DataFrame:
    """Return p95 and p5 of each `window` values of a device; those of devices with enough values alone."""
    size = max(1, int(window))
    enough = values.filter(pl.len().over("NodeId", "Name") >= patience)
    numbered = enough.sort("Timestamp").with_columns(
        Window=pl.int_range(pl.len()).over("NodeId", "Name") // size,
    )
    keys = ["NodeId", "Name", "Window"]
    return (
        numbered.group_by(keys)
        .agg(
            pl.col("Value").quantile(0.95, "linear").alias("p95"),
            pl.col("Value").quantile(0.05, "linear").alias("p5"),
            pl.col("Timestamp").min().alias("began"),
            pl.col("Timestamp").max().alias("ended"),
            pl.len().alias("count"),
        )
        .filter((pl.col("count") * 2 >= size) | (pl.col("Window") == 0))
        .sort(keys)
    )


def _by_gpu(seen: Observed, windows: pl.DataFrame, about: Outcome, patience: float) -> Outcome:
    """Say which GPUs violate in at least half of their windows."""
    values = seen.values(GPU)
    if windows.is_empty():
        longest = values.group_by("NodeId", "Name").len()["len"].max()
        why = NO_GPU if values.is_empty() else too_few(int(number(longest)), patience)
        return Outcome(about.rule, about.about, about.parameters, datapoints=values.height, why_not=why)
    evidence, fired = [], []
    for (node, gpu), frame in windows.group_by("NodeId", "Name", maintain_order=True):
        bad = frame.filter("violates")
        if bad.height * 2 < frame.height or bad.is_empty():
            continue
        fired.append(f"{gpu} of {node}")
        for row in bad.iter_rows(named=True):
            text = f"GPU p95 {row['p95']:.0f} %, p5 {row['p5']:.0f} %"
            evidence.append(Evidence(text, str(node), str(gpu), row["began"], row["ended"]))
    return Outcome(
        about.rule,
        about.about,
        about.parameters,
        datapoints=values.height,
        violations=int(windows["violates"].sum()),
        triggered=len(fired),
        summary=f"{_some(fired)}: {about.summary}" if fired else "",
        advice=about.advice,
        evidence=tuple(evidence),
        details={"gpus": fired},
    )


def gpu_memory_increase(seen: Observed, given: p.GPUMemoryIncrease) -> Outcome:
    """A GPU's memory grows between neighbouring windows, after the beginning."""
    about = "the memory used on a GPU has grown while the job ran"
    values = seen.values(GPU_MEMORY).sort("Timestamp")
    window, per_gpu = max(2, int(given.window)), ["NodeId", "Name"]
    longest = values.group_by(per_gpu).len()["len"].max()
    if number(longest) < given.patience:
        why = NO_GPU if longest is None else too_few(int(number(longest)), given.patience)
        return Outcome("GPUMemoryIncrease", about, given.numbers(), datapoints=values.height, why_not=why)
    value = pl.col("Value")
    grown = values.with_columns(
        # The original's windows: the last ten values, and those from the eleventh last to the third last.
        increase=(value.rolling_mean(window) - value.shift(2).rolling_mean(window - 1)).over(per_gpu),
        index=pl.int_range(1, pl.len() + 1).over(per_gpu),
    ).filter((pl.col("increase") > given.increase) & (pl.col("index") > given.patience))
    evidence = []
    for (node, gpu), frame in grown.group_by(per_gpu, maintain_order=True):
        for began, ended in intervals(frame["Timestamp"].to_list(), [True] * frame.height, _JOIN_S):
            text = f"memory of {gpu} up by more than {given.increase:g} points within {window} samples"
            evidence.append(Evidence(text, str(node), str(gpu), began, ended))
    gpus = sorted({f"{one.device} of {one.node}" for one in evidence})
    return Outcome(
        "GPUMemoryIncrease",
        about,
        given.numbers(),
        datapoints=values.height,
        violations=grown.height,
        triggered=len(gpus),
        summary=f"{_some(gpus)}: up by more than {given.increase:g} points within {window} samples" if gpus else "",
        advice="look for tensors kept from step to step (losses summed without .item() or .detach(),"
        " growing lists), and for"
        " batches of growing shape",
        evidence=tuple(evidence),
        details={"gpus": gpus},
    )


def too_few(points: int, patience: float) -> str:
    """Return why a rule has not judged."""
    return f"{points} samples are too few: patience is {patience:g} (--patience N judges from N on)"


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
