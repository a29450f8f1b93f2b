"""Files of results: what is in them, what is wrong with them, and whether there can be one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from harness.results import Cell, Round
from harness.stored import Done, appendable, each_line

KEPT = Round([90.0, 90.0], ["near", "near"])
LEFT_OUT = Round([90.0, 300.0], ["near", "far"])


def a_line(rounds: list[Round], build: str = "b1", operation: str = "all_reduce") -> dict[str, Any]:
    cells = [Cell("1x2", operation, 4096, rounds).summary()]
    named = {"layout": "1x2", "operation": operation, "interrupted": len(rounds) < 3}
    return {"benchmark": "collectives", "machine": {"smddp_build": build}, **named, "cells": cells}


def test_rounds_add_up_and_those_left_out_count() -> None:
    done = Done()
    assert done.rounds("b1", "1x2", "all_reduce", 4096) == 0
    done.add(a_line([KEPT]))
    assert done.rounds("b1", "1x2", "all_reduce", 4096) == 1
    done.add(a_line([KEPT, LEFT_OUT, LEFT_OUT]))
    assert done.rounds("b1", "1x2", "all_reduce", 4096) == 4


def test_what_was_measured_otherwise_does_not_count() -> None:
    done = Done()
    for line in (a_line([KEPT], build="b2"), a_line([KEPT], operation="broadcast"), {"benchmark": "ddp", "parts": []}):
        done.add(line)
    assert done.rounds("b1", "1x2", "all_reduce", 4096) == done.rounds("b1", "1x2", "all_reduce", 65536) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"not JSON", "no JSON at column 1"),
        (b"", "no JSON at column 1"),
        (b'{"benchmark": "collectives", "mach', "no JSON at column 30"),
        (b"{}", "it lacks 'benchmark'"),
        (b"[]", r"no JSON object, but \[\]"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"benchmark": "collectives", "machine": "c"}', "'str' object has no attribute 'get'"),
    ],
)
def test_a_damaged_line_is_named(text: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"benchmark": "ddp"}\n' + text + b"\n")
    with pytest.raises(ValueError, match=f"^{file}: line 2: not a line of results: {reason}"):
        each_line(file, Done().add)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{tmp_path}: cannot be read"):
        each_line(tmp_path, Done().add)


def test_what_can_be_appended_to_is_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    assert appendable(str(file)) == file
    assert not file.exists()
    file.write_text("before\n")
    assert appendable(str(file)) == file
    assert file.read_text() == "before\n"


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "no" / "a.jsonl", "No such file or directory")):
        with pytest.raises(argparse.ArgumentTypeError, match=rf"^'{path}' cannot be written \({reason}\)"):
            appendable(str(path))
