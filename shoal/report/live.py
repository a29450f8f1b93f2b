"""What hosts do now, from the last lines of their observation files. No effects."""

from dataclasses import dataclass

import polars as pl

from shoal.advise import quantity
from shoal.report import lines
from shoal.report.observed import (
    BUSY,
    CONTAINER_CPU,
    GPU,
    GPU_MEMORY,
    MEMORY,
    READ,
    RECEIVED,
    SENT,
    number,
)

WINDOW_S = 10.0  # averages are of these last seconds
COLUMNS = ("GPU", "its memory", "CPU", "memory", "in", "out", "read", "steps/s", "step", "data", "comm.")

# Column, where it is found in the files, whether it is a percentage. Of two for one column, the latter is shown.
_FIGURES = (
    ("GPU", "Dimension", GPU, True),
    ("its memory", "Dimension", GPU_MEMORY, True),
    ("CPU", "Dimension", BUSY, True),
    ("CPU", "Name", CONTAINER_CPU, True),
    ("memory", "Name", MEMORY, True),
    ("in", "Name", RECEIVED, False),
    ("out", "Name", SENT, False),
    ("read", "Name", READ, False),
)


@dataclass(frozen=True)
class Now:
    """One host's figures: a text for each column that it has one for."""

    figures: dict[str, str]
    newest: float  # the time of its last line; 0 if it has written none
    sampled: float  # that of the sampler's last line


def now(content: bytes) -> Now:
    """Return the figures of the last seconds in what may begin in the middle of a line."""
    metrics = _last(lines.parsed(content, lines.SYSTEM))
    steps = _last(lines.parsed(content, lines.STEP))
    figures = {}
    for label, column, name, is_share in _FIGURES:
        values = metrics.filter(pl.col(column) == name)["Value"]
        if not values.is_empty():
            mean = number(values.mean())
            figures[label] = f"{mean:.0f} %" if is_share else f"{quantity.show(mean)}/s"
    sampled, marked = (number(frame["Timestamp"].max()) for frame in (metrics, steps))
    return Now({**figures, **_of_steps(steps)}, max(sampled, marked), sampled)


def _last(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("Timestamp") > number(frame["Timestamp"].max()) - WINDOW_S)


def _of_steps(steps: pl.DataFrame) -> dict[str, str]:
    seconds = number(steps["Seconds"].sum())
    if seconds <= 0:
        return {}
    figures = {
        # Steps follow one another: what they lasted, all ranks together, is how long that many took.
        "steps/s": f"{steps.height / seconds:.3g}",
        "step": f"{number(steps['Seconds'].median()):.3g} s",
        "data": f"{100 * number(steps['DataSeconds'].sum()) / seconds:.0f} %",
    }
    if steps["CollectiveSeconds"].null_count() < steps.height:
        figures["comm."] = f"{100 * number(steps['CollectiveSeconds'].sum()) / seconds:.0f} %"
    return figures
