"""The page of results is what the stored lines say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness.results import Cell, Round

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "benchmarks" / "results_page.py"
MACHINE = {"cpu": "c", "cores": 2, "memory_gib": 24, "kernel": "6", "python": "3.11", "torch": "2.13", "smddp": "0.1"}


def a_line(size: int, gloo: float, layout: str = "1x2", cpu: str = "c", again: float | None = None) -> str:
    seconds = {"smddp": 1e-3, "gloo": gloo} | ({"smddp-again": again} if again else {})
    one = Round([90.0, 90.0], ["near", "near"], 0.0, seconds, seconds, 5e-4)
    run = {"layout": layout, "operation": "all_reduce", "link_bytes_per_second": 0, "settings": {"gloo": "defaults"}}
    run |= {
        "absent": {"mpich": "is not installed"},
        "failed": {},
        "wrong": {},
        "waiting_share_of_core": {"smddp": 0.01},
    }
    cells = [Cell(layout, "all_reduce", size, [one]).summary()]
    return json.dumps({"benchmark": "collectives", "machine": MACHINE | {"cpu": cpu}, **run, "cells": cells})


def results_page(*files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, files)], capture_output=True, text=True, check=False, timeout=60
    )


def test_lines_are_put_together_and_what_fails_comes_first(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text(a_line(16 << 20, 8e-3) + "\n" + a_line(16 << 20, 4e-3) + "\n")
    second.write_text(a_line(1 << 20, 3e-3) + "\n")
    done = results_page(first, second)
    assert done.returncode == 0, done.stderr
    page = done.stdout
    # 8 in one round and 4 in the other: 6, and the claim of 6 holds.
    assert "| 16 MiB | 6 | - | 6 (gloo) | - | 0.5 | 6 | near 2 |" in page
    assert "--layout 1x2 --op all_reduce --sizes 1M,16M" in page
    assert "- absent: mpich: is not installed" in page
    assert "6 of 6 claims hold" in page
    first.write_text(a_line(16 << 20, 5e-3) + "\n")
    page = results_page(first).stdout
    assert page.index("| gloo / smddp, time | 1x2 | all_reduce | 16 MiB | at least 6 | 5 |") < page.index(
        "## all_reduce"
    )


def test_what_falls_short_has_the_control_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(a_line(1 << 20, 5e-4, again=7e-4) + "\n")
    page = results_page(file).stdout
    assert "| claim | layout | operation | size | target | measured | control |" in page
    assert "| best peer (gloo) / smddp, time | 1x2 | all_reduce | 1 MiB | at least 1 | 0.5 | 0.7 |" in page


def test_each_result_names_its_machine_where_there_are_several(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(a_line(1 << 20, 3e-3) + "\n" + a_line(1 << 20, 3e-3, "1x4", "d") + "\n")
    page = results_page(file).stdout
    assert "Machine 1: c, 2 cores" in page
    assert "Machine 2: d, 2 cores" in page
    first, second = page.index("## all_reduce: 1 host x 2"), page.index("## all_reduce: 1 host x 4")
    assert first < page.index("On machine 1.") < second < page.index("On machine 2.")


def test_rounds_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(a_line(1 << 20, 3e-3) + "\n" + a_line(4 << 20, 3e-3, cpu="d") + "\n")
    done = results_page(file)
    assert (done.returncode, done.stdout) == (1, "")
    assert "1x2 all_reduce was measured on another machine, too" in done.stderr


@pytest.mark.parametrize("text", ["", "{}", "[]", "no JSON"])
def test_what_is_not_results_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    done = results_page(file)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("benchmarks/results_page.py: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = results_page(tmp_path / "b.jsonl")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"benchmarks/results_page.py: {tmp_path}/b.jsonl: cannot be read (")
    assert len(done.stderr.splitlines()) == 1


def test_the_pages_in_docs_are_made_from_the_results_of_their_names() -> None:
    files = sorted((REPOSITORY / "benchmarks" / "results").glob("*.jsonl"))
    pages = sorted((REPOSITORY / "docs").glob("smddp-results*.md"))
    assert files, "no results are stored"
    assert [file.stem for file in files] == [page.stem for page in pages]
    for file, page in zip(files, pages, strict=True):
        assert results_page(file).stdout == page.read_text()
