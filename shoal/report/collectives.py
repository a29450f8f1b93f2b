"""What libraries counted of their collectives: the field of that name in ranks' step files, summed up over steps."""

import re
from pathlib import Path
from typing import Any

import polars as pl

from shoal.report.observed import COLLECTIVES

_KIND = re.compile(rb'"([A-Za-z0-9_:-]{1,40})": ?\{"Calls"')
_MOST_KINDS = 50
_FIGURES = ("Calls", "Bytes", "Seconds")
_MOST = 1e18


def read(files: list[Path]) -> pl.DataFrame:
    """Return a row for each rank and kind of operation. A file that has no such field, or a bad one, has none."""
    frames = [pl.DataFrame(schema=COLLECTIVES)]
    for path in files:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        if b'"Calls"' not in content:  # which is found much faster than what names one
            continue
        kinds = sorted({kind.decode() for kind in _KIND.findall(content)})[:_MOST_KINDS]
        if kinds:
            frames += _of(content, kinds)
    return pl.concat(frames)


def _of(content: bytes, kinds: list[str]) -> list[pl.DataFrame]:
    figures = pl.Struct(dict.fromkeys(_FIGURES, pl.Float64))
    schema: dict[str, Any] = {
        "NodeId": pl.String,
        "Rank": pl.Int64,
        "Collectives": pl.Struct(dict.fromkeys(kinds, figures)),
    }
    whole = b"".join(line + b"\n" for line in content.split(b"\n") if line.endswith(b"}"))
    try:
        lines = pl.read_ndjson(whole, schema=schema).drop_nulls(["NodeId", "Rank"]).unnest("Collectives")
    except pl.exceptions.PolarsError:
        return []
    found = []
    for kind in kinds:
        sums = [_sum(pl.col(kind).struct.field(name)).alias(name) for name in _FIGURES]
        of_kind = lines.group_by("NodeId", "Rank", maintain_order=True).agg(sums).with_columns(Kind=pl.lit(kind))
        found.append(of_kind.select(COLLECTIVES.keys()).filter(pl.col("Calls") > 0))
    return found


def _sum(figure: pl.Expr) -> pl.Expr:
    """Of what somebody can have counted; null where nothing was."""
    good = figure.filter(figure.is_between(0, _MOST))
    return pl.when(good.len() > 0).then(good.sum())
