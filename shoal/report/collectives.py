"""What libraries counted of their collectives: the field of that name in ranks' step files, summed up over steps."""

import re
from typing import Any

import polars as pl

from shoal.report.observed import COLLECTIVES

_FIELD = "Collectives"
_BEFORE_COUNTS = re.compile(rb'"([A-Za-z0-9_:-]{1,40})": ?$')
_LONGEST = 44  # of what that finds
_MOST_KINDS = 50
_FIGURES = ("Calls", "Bytes", "Seconds")
_MOST = 1e18


def kinds(content: bytes) -> list[str]:
    """Return the names of the operations that are counted anywhere in a file."""
    before = content.split(b'{"Calls"')[:-1]  # much faster than to look for names everywhere
    ends = {part[-_LONGEST:] for part in before}
    return sorted({match[1].decode() for end in ends if (match := _BEFORE_COUNTS.search(end))})[:_MOST_KINDS]


def schema(kinds: list[str]) -> dict[str, Any]:
    """Return the field with the counts of these, as it is parsed; nothing where there are none."""
    figures = pl.Struct(dict.fromkeys(_FIGURES, pl.Float64))
    return {_FIELD: pl.Struct(dict.fromkeys(kinds, figures))} if kinds else {}


def sums(rows: pl.DataFrame, kinds: list[str]) -> list[pl.DataFrame]:
    """Return a row for each rank and kind of operation in rows with that field."""
    if not kinds:
        return []
    by_rank = rows.select("NodeId", "Rank", _FIELD).drop_nulls(["NodeId", "Rank"]).unnest(_FIELD)
    found = []
    for kind in kinds:
        figures = [_sum(pl.col(kind).struct.field(name)).alias(name) for name in _FIGURES]
        of_kind = by_rank.group_by("NodeId", "Rank", maintain_order=True).agg(figures).with_columns(Kind=pl.lit(kind))
        found.append(of_kind.select(COLLECTIVES.keys()).filter(pl.col("Calls") > 0))
    return found


def total(found: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the sums of all files, a row for each rank and kind of operation: a rank's steps may be in several."""
    figures = [_sum(pl.col(name)).alias(name) for name in _FIGURES]
    rows = pl.concat([pl.DataFrame(schema=COLLECTIVES), *found])
    return (
        rows.group_by("NodeId", "Rank", "Kind").agg(figures).sort("NodeId", "Rank", "Kind").select(COLLECTIVES.keys())
    )


def sums_of_whole_lines(content: bytes) -> list[pl.DataFrame]:
    """Return the same of a file with bad lines (the last, if its rank was killed); nothing if others are bad too."""
    names = kinds(content)
    if not names:
        return []
    whole = b"".join(line + b"\n" for line in content.split(b"\n") if line.endswith(b"}"))
    try:
        return sums(pl.read_ndjson(whole, schema={"NodeId": pl.String, "Rank": pl.Int64, **schema(names)}), names)
    except pl.exceptions.PolarsError:
        return []


def _sum(figure: pl.Expr) -> pl.Expr:
    """Of what somebody can have counted; null where nothing was."""
    good = figure.filter(figure.is_between(0, _MOST))
    return pl.when(good.len() > 0).then(good.sum())
