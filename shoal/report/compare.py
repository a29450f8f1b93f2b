"""Two runs side by side: which figures differ by more than the noise within the runs. Pure functions over their tables.

A run is cut into blocks of equal length. How much a figure varies from block to block says how well its mean is known:
two runs differ where their means are further apart than three standard errors of the difference, and than 1 %.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

import polars as pl

from shoal.report.observed import BUSY, GPU, GPU_MEMORY, IOWAIT, MEMORY, READ, RECEIVED, SENT, Observed, number
from shoal.report.outcome import Outcome

BLOCKS = 10
_ERRORS = 3.0
_LEAST = 0.01  # of the value before
_FEWEST = 3  # blocks; fewer say nothing of noise

Blocks = list[float]


@dataclass(frozen=True)
class Difference:
    """One figure of both runs. `noise` is what a difference must exceed; None where there are too few blocks."""

    figure: str
    unit: str
    before: float
    after: float
    noise: float | None
    less_is_better: bool | None

    @property
    def change(self) -> float:
        """After less before."""
        return self.after - self.before

    @property
    def differs(self) -> bool:
        """Whether the change is more than noise."""
        return self.noise is not None and abs(self.change) > max(self.noise, _LEAST * abs(self.before))

    @property
    def word(self) -> str:
        """Say it in a word or two."""
        if self.noise is None:
            return "too short to tell"
        if not self.differs:
            return "no difference"
        if self.less_is_better is None:
            return "higher" if self.change > 0 else "lower"
        return "better" if (self.change < 0) == self.less_is_better else "worse"

    def as_json(self) -> dict[str, object]:
        """Return it for JSON."""
        return {**asdict(self), "change": self.change, "differs": self.differs, "word": self.word}


def differences(before: Observed, after: Observed) -> list[Difference]:
    """Return every figure that both runs have."""
    found = []
    for figure, unit, less_is_better, blocks in _FIGURES:
        pair = [blocks(before), blocks(after)]
        if all(pair):
            then, now = (statistics.fmean(one) for one in pair)
            found.append(Difference(figure, unit, then, now, _noise(pair[0], pair[1]), less_is_better))
    return found


def _noise(before: Blocks, after: Blocks) -> float | None:
    if min(len(before), len(after)) < _FEWEST:
        return None
    return _ERRORS * math.sqrt(sum(statistics.variance(one) / len(one) for one in (before, after)))


def _steps(value: pl.Expr) -> Callable[[Observed], Blocks]:
    """Return a figure of steps: over all ranks, a block a stretch of their numbers."""

    def blocks(seen: Observed) -> Blocks:
        steps = seen.steps.filter(pl.col("Seconds") > 0)
        if steps.is_empty():
            return []
        first, last = number(steps["Step"].min()), number(steps["Step"].max())
        width = max(1.0, (last - first + 1) / BLOCKS)
        block = ((pl.col("Step") - first) / width).floor().alias("block")
        return _numbers(steps.group_by(block).agg(value.alias("figure")).sort("block"))

    return blocks


def _hardware(name: str, *, by_dimension: bool) -> Callable[[Observed], Blocks]:
    """Return the mean of a metric over hosts and devices, while steps ran if any were marked."""

    def blocks(seen: Observed) -> Blocks:
        values = seen.values(name) if by_dimension else seen.named(name)
        if not seen.steps.is_empty():
            first = number((seen.steps["Timestamp"] - seen.steps["Seconds"]).min())
            values = values.filter(pl.col("Timestamp").is_between(first, number(seen.steps["Timestamp"].max())))
        if values.is_empty():
            return []
        first, last = number(values["Timestamp"].min()), number(values["Timestamp"].max())
        width = max(1.0, (last - first) / BLOCKS)
        block = ((pl.col("Timestamp") - first) / width).floor().clip(0, BLOCKS - 1).alias("block")
        return _numbers(values.group_by(block).agg(pl.col("Value").mean().alias("figure")).sort("block"))

    return blocks


def _numbers(table: pl.DataFrame) -> Blocks:
    return [float(value) for value in table["figure"].drop_nulls().drop_nans()]


def _share(column: str) -> pl.Expr:
    return 100 * pl.col(column).sum() / pl.col("Seconds").filter(pl.col(column).is_not_null()).sum()


# (figure, unit, whether less of it is better, its value in each block)
_FIGURES: tuple[tuple[str, str, bool | None, Callable[[Observed], Blocks]], ...] = (
    ("median step", "s", True, _steps(pl.col("Seconds").median())),
    ("p95 step", "s", True, _steps(pl.col("Seconds").quantile(0.95, "linear"))),
    ("waiting for data", "%", True, _steps(_share("DataSeconds"))),
    ("waiting for collectives", "%", True, _steps(_share("CollectiveSeconds"))),
    ("GPU", "%", False, _hardware(GPU, by_dimension=True)),
    ("GPU memory", "%", None, _hardware(GPU_MEMORY, by_dimension=True)),
    ("CPU", "%", None, _hardware(BUSY, by_dimension=True)),
    ("I/O wait", "%", True, _hardware(IOWAIT, by_dimension=True)),
    ("memory", "%", None, _hardware(MEMORY, by_dimension=False)),
    ("read", "bytes/s", None, _hardware(READ, by_dimension=False)),
    ("received", "bytes/s", None, _hardware(RECEIVED, by_dimension=False)),
    ("sent", "bytes/s", None, _hardware(SENT, by_dimension=False)),
)


def sentence(found: list[Difference]) -> str:
    """Return the comparison in one sentence: the step's time first, for that is what a user waits for."""
    step = next((one for one in found if one.figure == "median step"), None)
    if step is None:
        differ = [one.figure for one in found if one.differs]
        return f"No steps to compare; {', '.join(differ) or 'nothing'} differs by more than noise"
    if step.noise is None:
        return "The runs are too short to tell a difference from noise"
    if not step.differs or step.before <= 0:
        return f"Steps take as long as before: {step.before:.4g} s and {step.after:.4g} s are within the noise"
    percent = 100 * abs(step.change) / step.before
    word = "shorter" if step.change < 0 else "longer"
    return f"Steps are {percent:.1f} % {word}: {step.after:.4g} s instead of {step.before:.4g} s"


def rules_changed(before: list[Outcome], after: list[Outcome]) -> list[tuple[str, str, str]]:
    """Return the rules whose answers differ: name, then, now."""
    then = {outcome.rule: outcome.state for outcome in before}
    pairs = [(outcome.rule, then.get(outcome.rule, "not asked"), outcome.state) for outcome in after]
    return [pair for pair in pairs if pair[1] != pair[2] and pair[0] != "OverallSystemUsage"]
