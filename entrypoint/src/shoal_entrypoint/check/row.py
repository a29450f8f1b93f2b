"""One finding: a line of the table, an object in the JSON."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

__all__ = ["NOTE", "OK", "PROBLEM", "Row", "size", "worst"]

OK, NOTE, PROBLEM = "ok", "note", "problem"


class Row(NamedTuple):
    """`name` and the keys of `values` are stable: programs read them. `text` and `advice` are for people."""

    name: str
    state: str
    text: str
    advice: str = ""  # what to do; every problem has one
    values: Mapping[str, Any] = {}


def worst(states: list[str]) -> str:
    """The gravest of some states."""
    return max(states, key=(OK, NOTE, PROBLEM).index, default=OK)


def size(count: float) -> str:
    """Bytes for people, as `docker run --shm-size` and `df -h` count them: 1 MB is 1024 KB."""
    units = ("bytes", "KB", "MB", "GB", "TB")
    step = 0
    while count >= 1024 and step < len(units) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.{0 if count >= 10 or count == int(count) else 1}f} {units[step]}"
