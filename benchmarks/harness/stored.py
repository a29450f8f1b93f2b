"""Files of results: one JSON object a line, appended by one run after another."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any


def each_line(file: Path, take: Callable[[dict[str, Any]], None]) -> None:
    """Hand every line of `file` to `take`.

    Raises:
        ValueError: it cannot be read, a line is no JSON object, or `take` misses something in one.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error})") from error
    for number, text in enumerate(lines, 1):
        try:
            take(_object(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{file}: line {number}: not a line of results: {reason}") from error


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text.decode())
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON at column {error.colno} ({error.msg})") from None
    if not isinstance(found, dict):
        raise ValueError(f"no JSON object, but {text.decode()[:40]}")
    return found


def appendable(text: str) -> Path:
    """For --output: a file that can be written, which must not show only when there is something to write.

    Raises:
        argparse.ArgumentTypeError: it cannot.
    """
    file = Path(text)
    new = not file.exists()
    try:
        file.open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written ({error.strerror})") from error
    if new:
        file.unlink()
    return file


class Done:
    """The rounds of collectives that files of results hold."""

    def __init__(self) -> None:
        self._rounds: Counter[tuple[str, str, str, int]] = Counter()

    def add(self, line: dict[str, Any]) -> None:
        if line["benchmark"] != "collectives":
            return
        build = str(line["machine"].get("smddp_build"))
        for cell in line["cells"]:
            self._rounds[build, line["layout"], line["operation"], cell["bytes"]] += len(cell["rounds"])

    def rounds(self, build: str, layout: str, operation: str, size: int) -> int:
        """All that were measured, those that were left out too: on a machine whose cores move in every round a size
        would else never be done."""
        return self._rounds[build, layout, operation, size]
