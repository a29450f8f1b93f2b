"""What is known of a run: two tables, what was wrong with the files they come from, and the job's own description.

`metrics` has a row for each value that a host's sampler wrote; `steps` one for each step that a rank marked.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

METRICS = {
    "Type": pl.String,
    "Name": pl.String,
    "Dimension": pl.String,
    "Value": pl.Float64,
    "NodeId": pl.String,
    "Timestamp": pl.Float64,
}
STEPS = {
    "NodeId": pl.String,
    "Rank": pl.Int64,
    "Step": pl.Int64,
    "Timestamp": pl.Float64,  # of its end
    "Seconds": pl.Float64,
    "DataSeconds": pl.Float64,  # of these, waiting for the data loader
    "CollectiveSeconds": pl.Float64,  # of these, waiting for collectives; null where nobody measured it
    "CollectiveBytes": pl.Float64,
    "CheckpointSeconds": pl.Float64,
}

COLLECTIVES = {  # of a rank, in all its steps
    "NodeId": pl.String,
    "Rank": pl.Int64,
    "Kind": pl.String,
    "Calls": pl.Float64,
    "Bytes": pl.Float64,
    "Seconds": pl.Float64,  # in the operations; null where nobody measured it
}

BUSY, IOWAIT = "CPUUtilization", "I/OWaitPercentage"
GPU, GPU_MEMORY = "GPUUtilization", "GPUMemoryUtilization"
MEMORY = "MemoryUsedPercent"
CONTAINER_CPU = "CPUOfLimit"  # percent of what the container may use
READ, WRITTEN = "ReadThroughputInBytesPerSecond", "WriteThroughputInBytesPerSecond"
RECEIVED, SENT = "ReceiveBytesPerSecond", "TransmitBytesPerSecond"


@dataclass
class Faults:
    """What was wrong with the files; nothing of it stops a report."""

    files: int = 0
    lines: int = 0
    bad_lines: int = 0
    bad_files: list[str] = field(default_factory=list)  # with bad lines, or not readable
    clock_jumps: dict[str, int] = field(default_factory=dict)  # host -> how often its clock went back
    gaps: dict[str, float] = field(default_factory=dict)  # host -> seconds without a sample
    stopped_early: dict[str, float] = field(default_factory=dict)  # host -> seconds before the last host's last sample


@dataclass(frozen=True)
class Observed:
    """A run as its files tell it."""

    metrics: pl.DataFrame
    steps: pl.DataFrame
    job: dict[str, Any] = field(default_factory=dict)  # job.json of the run; empty if there is none
    collectives: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COLLECTIVES))
    environments: list[dict[str, Any]] = field(default_factory=list)  # what each host's sampler tells of the host
    placements: list[dict[str, Any]] = field(default_factory=list)  # what smp tells of where modules lie
    log_marks: dict[str, list[str]] = field(default_factory=dict)  # what a rule looks for in logs -> "host: line"
    faults: Faults = field(default_factory=Faults)

    @cached_property
    def nodes(self) -> list[str]:
        """The hosts, in the order of their numbers."""
        names = set(self.metrics["NodeId"].unique()) | set(self.steps["NodeId"].unique())
        return sorted(names, key=_by_number)

    @cached_property
    def began(self) -> float:
        """The time of the first value or the beginning of the first step; 0 if there is none."""
        first = [self.metrics["Timestamp"].min(), (self.steps["Timestamp"] - self.steps["Seconds"]).min()]
        return min((float(value) for value in first if isinstance(value, float)), default=0.0)

    @cached_property
    def ended(self) -> float:
        """The time of the last value or step; 0 if there is none."""
        last = [self.metrics["Timestamp"].max(), self.steps["Timestamp"].max()]
        return max((float(value) for value in last if isinstance(value, float)), default=0.0)

    def values(self, dimension: str) -> pl.DataFrame:
        """Return one dimension's rows: NodeId, Snapshot, Timestamp, Name, Value."""
        chosen = self.metrics.filter(pl.col("Dimension") == dimension)
        return chosen.select("NodeId", "Snapshot", "Timestamp", "Name", "Value")

    def named(self, name: str) -> pl.DataFrame:
        """Return the rows of one name: NodeId, Snapshot, Timestamp, Name, Value."""
        chosen = self.metrics.filter(pl.col("Name") == name)
        return chosen.select("NodeId", "Snapshot", "Timestamp", "Name", "Value")


def number(value: object) -> float:
    """Return what an aggregate of a column gives as a number; 0 for that of an empty column."""
    return float(value) if isinstance(value, int | float) else 0.0


def _by_number(host: str) -> tuple[int, str]:
    digits = host.rpartition("-")[2]
    # ASCII, and short: int() takes more digits than these, and fewer than there may be.
    return (int(digits) if re.fullmatch("[0-9]{1,9}", digits) else 1 << 30, host)
