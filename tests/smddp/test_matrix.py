"""The parts of `make matrix` that build nothing: what stands on record, and the table made of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import matrix
from torch_releases import ROOT, Result

from shoal.image.versions_file import load

VERSIONS = load(ROOT / "versions.yaml")
ROW = "2.13-cpu"


def kept(folder: Path, smddp: str) -> None:
    result = Result("2.13", torch="2.13.0+cpu", python="3.11", build_seconds=31.0, wheel_kb=900, passed=73)
    record = matrix.record_of(VERSIONS.row(ROW), folder)
    record.write_text(json.dumps({"smddp": smddp, "result": asdict(result)}))


def line(folder: Path) -> str:
    """Return the row's line of the page for the sources `today`."""
    [found] = [one for one in matrix.lines_of_page(VERSIONS, folder, "today") if one.startswith(f"| {ROW} |")]
    return found


def test_what_these_sources_passed_is_shown(tmp_path: Path) -> None:
    kept(tmp_path, "today")
    assert line(tmp_path) == "| 2.13-cpu | 2.13.0+cpu | 3.11 | 31 | 900 | 73 passed |"


def test_what_older_sources_passed_is_not(tmp_path: Path) -> None:
    kept(tmp_path, "yesterday")
    assert line(tmp_path) == "| 2.13-cpu | 2.13.0 | 3.11 | - | - | older sources |"
    assert matrix.on_record(VERSIONS.row(ROW), tmp_path, "today") is None


def test_a_row_without_a_record(tmp_path: Path) -> None:
    assert line(tmp_path) == "| 2.13-cpu | 2.13.0 | 3.11 | - | - | not run |"
