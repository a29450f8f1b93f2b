"""A run in a few words and figures for page and terminal: the verdict, its steps, what was wrong with its files."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl

from shoal.report.observed import Faults, Observed
from shoal.report.outcome import Outcome
from shoal.report.rules.job import USAGE
from shoal.report.rules.steps import NO_STEPS


@dataclass(frozen=True)
class Verdict:
    """One sentence, and why."""

    good: bool
    sentence: str
    reasons: tuple[Outcome, ...]


def verdict(outcomes: list[Outcome]) -> Verdict:
    """Return what to tell first: causes stand before symptoms in the order of the rules."""
    fired = tuple(outcome for outcome in outcomes if outcome.fired)
    judged = [outcome for outcome in outcomes if not outcome.why_not and outcome.rule != "OverallSystemUsage"]
    if fired:
        first = fired[0]
        more = f" ({len(fired)} rules fired)" if len(fired) > 1 else ""
        return Verdict(False, f"{first.about[:1].upper()}{first.about[1:]}{more}", fired)
    if not judged:
        return Verdict(False, "Nothing could be judged: too little was measured", ())
    return Verdict(True, f"No rule fired; {len(judged)} of {len(outcomes) - 1} could judge", ())


def facts(seen: Observed) -> list[tuple[str, str]]:
    """Return what a reader asks first of a run."""
    job, found = seen.job, []
    for label, value in (
        ("job", job.get("TrainingJobName")),
        ("ended as", " / ".join(filter(None, (job.get("TrainingJobStatus"), job.get("SecondaryStatus"))))),
        ("why", job.get("FailureReason")),
        ("image", (job.get("AlgorithmSpecification") or {}).get("TrainingImage")),
        ("instances", _instances(job)),
    ):
        if value:
            found.append((label, str(value)))
    if seen.ended > 0:
        found.append(("measured", f"{_moment(seen.began)}, for {_span(seen.ended - seen.began)}"))
    found.append(("hosts", f"{len(seen.nodes)}: {', '.join(seen.nodes[:8])}{', ...' if len(seen.nodes) > 8 else ''}"))
    found.append(("values", f"{seen.metrics.height:,} of the hardware, {seen.steps.height:,} steps"))
    return found


def _instances(job: dict[str, Any]) -> str:
    resources = job.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or [resources]
    return ", ".join(
        f"{one['InstanceCount']} x {one.get('InstanceType', '?')}" for one in groups if "InstanceCount" in one
    )


def remarks(faults: Faults) -> list[str]:
    """Return what was wrong with the files, a sentence each."""
    found = []
    if faults.bad_lines:
        shown = "; ".join(faults.bad_files[:3]) + ("; ..." if len(faults.bad_files) > 3 else "")
        found.append(f"{faults.bad_lines:,} of {faults.lines:,} lines could not be read and were passed over ({shown})")
    elif faults.bad_files:
        found.append(f"files that could not be read: {'; '.join(faults.bad_files[:3])}")
    for node, jumps in sorted(faults.clock_jumps.items()):
        found.append(f"the clock of {node} went back {jumps} times: times of that host are not to be trusted")
    for node, lost in sorted(faults.gaps.items()):
        found.append(f"{node} wrote nothing for {_span(lost)} in between")
    for node, early in sorted(faults.stopped_early.items()):
        found.append(f"{node} wrote its last sample {_span(early)} before the others")
    return found


def percentiles(seen: Observed) -> dict[str, float]:
    """Return those of the steps' seconds; empty without steps."""
    seconds = seen.steps["Seconds"]
    if seconds.is_empty():
        return {}
    points = {"min": 0.0, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: float(seconds.quantile(point, "linear") or 0.0) for name, point in points.items()}


def communication(seen: Observed) -> list[dict[str, Any]]:
    """Return, for each rank, its steps and where their time went."""
    if seen.steps.is_empty():
        return []
    table = seen.steps.group_by("NodeId", "Rank").agg(
        pl.len().alias("steps"),
        pl.col("Seconds").sum().alias("seconds"),
        pl.col("Seconds").median().alias("median"),
        pl.col("DataSeconds").sum().alias("data"),
        pl.col("CollectiveSeconds").sum().alias("collective"),
        pl.col("CollectiveSeconds").count().alias("measured"),
        pl.col("CollectiveBytes").sum().alias("bytes"),
        pl.col("CheckpointSeconds").sum().alias("checkpoint"),
    )
    return list(table.sort("Rank", "NodeId").iter_rows(named=True))


def collectives(seen: Observed) -> list[dict[str, Any]]:
    """Return, for each kind of operation and host, what one of its ranks did in a step; algbw where it was measured."""
    counted = seen.collectives
    if counted.is_empty() or seen.steps.is_empty():
        return []
    steps = seen.steps.group_by(pl.col("NodeId").cast(pl.String), "Rank").agg(steps=pl.len())
    table = (
        counted.join(steps, on=["NodeId", "Rank"])
        .group_by("Kind", "NodeId")
        .agg(
            pl.col("Rank").n_unique().alias("ranks"),
            *(pl.col(name).sum() / pl.col("steps").sum() for name in ("Calls", "Bytes")),
            (pl.col("Seconds").sum() / pl.col("steps").filter(pl.col("Seconds").is_not_null()).sum()).alias("Seconds"),
            (pl.col("Bytes").filter(pl.col("Seconds") > 0).sum() / pl.col("Seconds").sum()).alias("algbw"),
        )
    )
    table = table.with_columns(pl.col("Seconds", "algbw").fill_nan(None))  # of nothing over nothing
    order = {node: number for number, node in enumerate(seen.nodes)}
    return sorted(table.iter_rows(named=True), key=lambda row: (row["Kind"], order.get(row["NodeId"], 0)))


def versions(seen: Observed) -> list[tuple[str, str, bool]]:
    """Return what each host's Python, kernel and packages are, and whether hosts differ in it."""
    told: dict[str, dict[str, list[str]]] = {}  # label -> value -> hosts
    for one in seen.environments:
        labels = {name: one[name] for name in ("Python", "Kernel") if name in one}
        for label, value in {**labels, **one["Packages"]}.items():
            told.setdefault(label, {}).setdefault(value, []).append(one["NodeId"])
    found = []
    for label, values in told.items():
        hosts = sum(len(where) for where in values.values())
        differ = len(values) > 1 or hosts < len(seen.environments)
        text = ", ".join(f"{value} ({_some(where)})" if differ else value for value, where in values.items())
        found.append((label, text, differ))
    return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def usage(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Return OverallSystemUsage's table: percentages and, of the other metrics, bytes per second."""
    rows = next(outcome for outcome in outcomes if outcome.rule == "OverallSystemUsage").details["usage"]
    return [
        {**row, "percent": row["Metric"] in USAGE or row["Metric"] in ("CPUMemory", "ContainerCPU")} for row in rows
    ]


def why_short(outcome: Outcome) -> str:
    """Return why a rule did not judge, short enough for a table."""
    return "no steps marked" if outcome.why_not == NO_STEPS else outcome.why_not


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
