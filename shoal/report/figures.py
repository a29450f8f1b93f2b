"""What the plots show, as tables small enough to draw: averages of time slices. No drawing here."""

import polars as pl

from shoal.report.observed import (
    BUSY,
    CONTAINER_CPU,
    GPU,
    GPU_MEMORY,
    IOWAIT,
    MEMORY,
    READ,
    RECEIVED,
    SENT,
    Observed,
    number,
)
from shoal.report.outcome import Outcome
from shoal.report.rules.steps import lateness
from shoal.report.shapes import Heat, Line, Timeline

SLICES = 240
HEAT_SLICES = 120
_SHARES = (
    ("GPU", GPU, True),
    ("CPU", BUSY, True),
    ("I/O wait", IOWAIT, True),
    ("GPU memory", GPU_MEMORY, True),
    ("memory", MEMORY, False),
    ("container's CPU", CONTAINER_CPU, False),
)
_RATES = (("received", RECEIVED), ("sent", SENT), ("read", READ))


def timelines(seen: Observed, outcomes: list[Outcome]) -> list[Timeline]:
    """Return the timeline of each host that wrote samples."""
    shares = {
        label: _slices(seen, seen.values(name) if by_name else seen.named(name)) for label, name, by_name in _SHARES
    }
    rates = {label: _slices(seen, seen.named(name)) for label, name in _RATES}
    found = []
    for node in seen.nodes:
        line = Timeline(node, _lines(shares, node), _lines(rates, node), _fired(seen, outcomes, node))
        if line.shares or line.rates:
            found.append(line)
    return found


def _width(seen: Observed, slices: int) -> float:
    return max((seen.ended - seen.began) / slices, 0.5)


def _slices(seen: Observed, values: pl.DataFrame) -> pl.DataFrame:
    width = _width(seen, SLICES)
    at = ((pl.col("Timestamp") - seen.began) / width).floor().alias("at")
    sliced = values.group_by("NodeId", at).agg(pl.col("Value").mean()).sort("at")
    return sliced.with_columns(minutes=(pl.col("at") + 0.5) * width / 60)


def _lines(tables: dict[str, pl.DataFrame], node: str) -> list[Line]:
    lines = []
    for label, table in tables.items():
        here = table.filter(pl.col("NodeId") == node)
        if here.height:
            lines.append(Line(label, here["minutes"].to_list(), here["Value"].to_list()))
    return lines


def _fired(seen: Observed, outcomes: list[Outcome], node: str) -> list[tuple[str, float, float]]:
    spans: set[tuple[str, float, float]] = set()
    for outcome in outcomes:
        for one in outcome.evidence if outcome.fired else ():
            if one.node in ("", node) and one.began is not None and one.ended is not None:
                spans.add((outcome.rule, (one.began - seen.began) / 60, (one.ended - seen.began) / 60))
    return sorted(spans)


def heat(seen: Observed) -> Heat | None:
    """Return how late ranks were over time, in percent of the median step; None if there is one rank alone."""
    late = lateness(seen.steps)
    if late.is_empty():
        return None
    usual = number((late["own"] - late["late"]).median()) or 1.0
    width = _width(seen, HEAT_SLICES)
    at = ((pl.col("Timestamp") - seen.began) / width).floor().cast(pl.Int64).alias("at")
    cells = late.group_by("NodeId", "Rank", at).agg(100 * pl.col("late").mean() / usual)
    ranks = sorted(set(late.select("Rank", "NodeId").iter_rows()))
    columns = int(number(cells["at"].max())) + 1
    rows: dict[tuple[int, str], list[float | None]] = {rank: [None] * columns for rank in ranks}
    for node, rank, column, value in cells.iter_rows():
        rows[rank, node][column] = value
    return Heat([f"{rank} ({node})" for rank, node in ranks], columns * width / 60, [rows[rank] for rank in ranks])
