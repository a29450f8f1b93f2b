"""Files of JSON lines -> tables: many files at once where all their lines are good, else line by line.

Nothing in these files stops a reader: a host may have died in the middle of a line.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from shoal.report import collectives, sound
from shoal.report.observed import METRICS, STEPS, Faults

# The service's profiler begins a file a minute. Parsed one at a time, they took 1.7 times as long.
_AT_ONCE = 16 << 20


@dataclass(frozen=True)
class Kind:
    """What lines have: all that is read of them, and without what of it a line is no good."""

    schema: dict[str, Any]
    needed: tuple[str, ...]
    has_collectives: bool = False


SYSTEM = Kind(METRICS, ("Type", "Name", "Value", "NodeId", "Timestamp"))
STEP = Kind(STEPS, ("NodeId", "Rank", "Timestamp", "Seconds"), has_collectives=True)


@dataclass
class _Part:
    """Some of the files."""

    rows: pl.DataFrame
    sums: list[pl.DataFrame]  # of collectives
    lines: int
    faults: list[tuple[int, str]] = field(default_factory=list)  # of each bad file: bad lines, and what to say of it


def table(files: list[Path], kind: Kind, faults: Faults) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the good lines of all files, and the sums of their collectives; what was wrong is added to `faults`."""
    # Four words make up most of a line, and there are few different ones: numbers stand for them from here on.
    words: dict[Any, Any] = {name: pl.Categorical for name, of in kind.schema.items() if of == pl.String}
    frames = [pl.DataFrame(schema=kind.schema).cast(words)]
    sums: list[pl.DataFrame] = []
    # In threads: polars parses without holding Python back.
    with ThreadPoolExecutor() as pool:
        for parts in pool.map(lambda group: _group(group, kind), _groups(files)):
            for part in parts:
                frames.append(part.rows.cast(words))
                sums += part.sums
                faults.lines += part.lines
                faults.bad_lines += sum(bad for bad, _ in part.faults)
                faults.bad_files += [said for _, said in part.faults]
    faults.files += len(files)
    return pl.concat(frames), collectives.total(sums)


def parsed(content: bytes, kind: Kind) -> pl.DataFrame:
    """Return the lines that can be read and have all that is needed."""
    try:
        rows = pl.read_ndjson(content, schema=kind.schema) if content.strip() else pl.DataFrame(schema=kind.schema)
    except pl.exceptions.PolarsError:
        read = [row for line in content.split(b"\n") if (row := _row(line, kind.schema)) is not None]
        rows = pl.DataFrame(read, schema=kind.schema)
    return sound.rows(rows, kind.needed)


def _groups(files: list[Path]) -> Iterator[list[Path]]:
    group: list[Path] = []
    size = 0
    for path in files:
        group.append(path)
        size += path.stat().st_size if path.exists() else 0
        if size >= _AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _group(paths: list[Path], kind: Kind) -> list[_Part]:
    parts, contents = [], []
    for path in paths:
        try:
            contents.append((path.name, path.read_bytes()))
        except OSError as error:
            said = f"{path.name}: {error.strerror or error}"
            parts.append(_Part(pl.DataFrame(schema=kind.schema), [], 0, [(0, said)]))
    together = _together([content for _, content in contents], kind)
    return [*parts, *([together] if together else [_one(name, content, kind) for name, content in contents])]


def _together(contents: list[bytes], kind: Kind) -> _Part | None:
    """Return the rows of several files; None if one of their lines is no good."""
    whole = b"".join(content if content.endswith(b"\n") else content + b"\n" for content in contents if content)
    lines = whole.count(b"\n")
    kinds = collectives.kinds(whole) if kind.has_collectives else []
    try:
        rows = pl.read_ndjson(whole, schema={**kind.schema, **collectives.schema(kinds)}) if whole else None
    except pl.exceptions.PolarsError:
        return None
    if rows is None:
        return _Part(pl.DataFrame(schema=kind.schema), [], 0)
    good = sound.rows(rows.select(kind.schema.keys()), kind.needed)
    return _Part(good, collectives.sums(rows, kinds), lines) if good.height == lines else None


def _one(name: str, content: bytes, kind: Kind) -> _Part:
    """Return what can be read of a file."""
    lines = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    rows = parsed(content, kind)
    bad = lines - rows.height
    found = collectives.sums_of_whole_lines(content) if kind.has_collectives else []
    return _Part(rows, found, lines, [(bad, f"{name}: {bad} of {lines} lines")] if bad else [])


def _row(line: bytes, schema: dict[str, Any]) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    row = {name: value.get(name) for name in schema}
    for name, kind in schema.items():
        given = row[name]
        if given is not None and not _fits(given, kind):
            return None
    return row


def _fits(given: object, kind: Any) -> bool:
    if kind == pl.String:
        return isinstance(given, str)
    if isinstance(given, bool):
        return False
    if kind == pl.Int64:
        return isinstance(given, int) and abs(given) < 1 << 63
    return isinstance(given, float) or (isinstance(given, int) and abs(given) < 1 << 63)
