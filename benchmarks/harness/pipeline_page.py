"""What benchmarks/pipeline.py makes of its measurements: rows, and the claims that they support or not."""

from __future__ import annotations

import random
import statistics
from typing import Any

from harness import report
from harness.pipeline import Case

Row = dict[str, Any]
_MIB = 2**20
_DRAWS = 2000


def ratio(faster: list[float], slower: list[float]) -> float:
    """The median over rounds of `slower` / `faster` within a round."""
    return statistics.median(b / a for a, b in zip(faster, slower, strict=True))


def interval(faster: list[float], slower: list[float]) -> tuple[float, float]:
    """Between what 95 % of such medians lie, were other rounds drawn from these: the bootstrap's percentiles.

    Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 7 (1979). The draws are the same in
    every run.
    """
    draw = random.Random(0)
    values = [b / a for a, b in zip(faster, slower, strict=True)]
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(_DRAWS))
    return medians[round(0.025 * _DRAWS)], medians[round(0.975 * _DRAWS) - 1]


def steps_row(case: Case, seconds: dict[str, list[float]]) -> Row:
    """A case in which steps were timed."""
    return {
        "case": case.name,
        "part": case.part,
        "ranks": case.ranks,
        "microbatches": case.microbatches,
        "rounds": len(next(iter(seconds.values()))),
        "median_seconds": {side: round(statistics.median(values), 5) for side, values in seconds.items()},
        "seconds": {side: [round(value, 5) for value in values] for side, values in seconds.items()},
    }


def claims(rows: list[Row]) -> list[dict[str, Any]]:
    """Each target with what was measured."""
    return [claim for row in rows for claim in _BY_PART[row["part"]](row)]


def _claim(what: str, target: float, measured: float, *, at_most: bool = False, unit: str = "") -> dict[str, Any]:
    holds = measured <= target if at_most else measured >= target
    found = {"what": what, "target": target, "at_most": at_most, "measured": round(measured, 4), "holds": holds}
    return {**found, "unit": unit} if unit else found


def _speed(what: str, target: float, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    between = [round(end, 4) for end in interval(ours, theirs)]
    return {**_claim(what, target, ratio(ours, theirs)), "interval": between}


def _sleep(row: Row) -> list[dict[str, Any]]:
    times = row["seconds"]
    return [
        _speed(f"{row['case']}: schedule quality, {side}, over 1F1B", target, times[side], times["1f1b"])
        for side, target in (("smp", 0.97), ("smp, active = M", 1.0))
    ]


def _compute(row: Row) -> list[dict[str, Any]]:
    times = row["seconds"]
    # The faster one over all rounds: the lesser of two noisy times of each round would be less than either schedule's.
    faster = min(("gpipe", "1f1b"), key=lambda side: statistics.median(times[side]))
    what = f"{row['case']}: speed of smp over the faster of GPipe and 1F1B ({faster})"
    return [_speed(what, 1.0, times["smp"], times[faster])]


def _memory(row: Row) -> list[dict[str, Any]]:
    share = max(row["peak_bytes"]["smp"]) / row["peak_bytes"]["single"][0]
    return [_claim("peak memory of a rank over that of one process", 0.6, share, at_most=True)]


def _hop(row: Row) -> list[dict[str, Any]]:
    return [
        _claim(f"a remote call's {way}", 0.3, statistics.median(row["milliseconds"][way]), at_most=True, unit="ms")
        for way in ("forward", "backward")
    ]


_BY_PART = {"sleep": _sleep, "compute": _compute, "memory": _memory, "hop": _hop}


def text(rows: list[Row], stated: list[dict[str, Any]]) -> str:
    """For people."""
    parts = []
    for row in rows:
        if "seconds" in row:
            parts.append(_steps_table(row))
        elif row["part"] == "memory":
            for side, peaks in row["peak_bytes"].items():
                parts.append(f"peak memory, {side}: " + " and ".join(f"{peak / _MIB:.0f} MiB" for peak in peaks))
        else:
            times = {way: statistics.median(values) for way, values in row["milliseconds"].items()}
            parts.append("a remote call: " + ", ".join(f"{way} {value:.3f} ms" for way, value in times.items()))
    return "\n".join([*parts, *map(report.verdict, stated)])


def _steps_table(row: Row) -> str:
    table = [[row["case"], "ms", "speed / 1F1B"]]
    for side, seconds in row["median_seconds"].items():
        over = ratio(row["seconds"][side], row["seconds"]["1f1b"])
        table.append([side, f"{seconds * 1e3:.0f}", f"{over:.3f}"])
    return report.aligned(table)
