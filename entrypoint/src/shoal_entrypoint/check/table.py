"""Rows -> an aligned table for people, coloured only where a person is sure to look at it."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import IO, Mapping

from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row

__all__ = ["render", "wants_colour", "width_of"]

_COLOURS = {OK: "\033[32m", NOTE: "\033[33m", PROBLEM: "\033[1;31m"}
_PLAIN = "\033[0m"
_STATE_WIDTH = len(PROBLEM)
_LEAST_TEXT = 30


def render(title: str, rows: list[Row], colour: bool = False, width: int | None = None) -> str:
    """The whole table. With a `width`, long texts go on below themselves; without one, each is one line."""
    name_width = max((len(row.name) for row in rows), default=0)
    indent = " " * (_STATE_WIDTH + name_width + 4)
    room = None if width is None else max(_LEAST_TEXT, width - len(indent))
    lines = [title]
    for row in rows:
        state = f"{row.state:<{_STATE_WIDTH}}"
        shown = f"{_COLOURS[row.state]}{state}{_PLAIN}" if colour else state
        first, *rest = _wrap(row.text, room)
        lines.append(f"{shown}  {row.name:<{name_width}}  {first}".rstrip())
        lines += [indent + line for line in rest]
        if row.advice:
            first, *rest = _wrap(row.advice, None if room is None else room - 3)
            lines += [f"{indent}-> {first}", *(f"{indent}   {line}" for line in rest)]
    lines.append(_total(rows))
    return "\n".join(lines) + "\n"


def wants_colour(stream: IO[str], environ: Mapping[str, str]) -> bool:
    """Whether a terminal that can show colours reads `stream`; https://no-color.org switches them off."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def width_of(stream: IO[str]) -> int | None:
    """The columns of a terminal; None for a file or a pipe, where a line is a line."""
    return shutil.get_terminal_size().columns if stream is sys.stdout and os.isatty(stream.fileno()) else None


def _wrap(text: str, room: int | None) -> list[str]:
    lines = [line for line in text.splitlines() if line] or [""]
    if room is None:
        return [" ".join(lines)]
    return [part for line in lines for part in textwrap.wrap(line, room, break_on_hyphens=False)] or [""]


def _total(rows: list[Row]) -> str:
    counts = {state: sum(row.state == state for row in rows) for state in (PROBLEM, NOTE)}
    words = [f"{count} {state}{'s' * (count != 1)}" for state, count in counts.items() if count]
    return ", ".join(words) if counts[PROBLEM] else ", ".join(["no problems", *words])
