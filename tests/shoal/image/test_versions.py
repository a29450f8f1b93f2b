"""versions.yaml: what it may say, and the one line a mistake gets."""

import copy
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.errors import ShoalError
from shoal.image.versions import load, parse

ROOT = Path(__file__).resolve().parents[3]
DATA: dict[str, Any] = yaml.safe_load((ROOT / "versions.yaml").read_text())
ROW = "2.13-cpu"


def test_the_committed_file_is_valid() -> None:
    row = load(ROOT / "versions.yaml").row(ROW)
    assert (row.torch, row.python, row.device, row.base) == ("2.13.0", "3.11", "cpu", "debian12")


def test_a_row_inherits_defaults_and_may_override_them() -> None:
    data = copy.deepcopy(DATA)
    data["rows"][ROW]["lightning"] = "2.5.0"
    assert parse(data).row(ROW).lightning == "2.5.0"
    assert parse(DATA).row(ROW).lightning == DATA["defaults"]["lightning"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["rows"][ROW].update(pyton="3.11"), "rows.2.13-cpu: unknown key 'pyton'; did you mean python?"),
        (lambda d: d["rows"][ROW].update(python="3.9"), "python: 3.9: torch 2.13.0 has wheels for 3.10 to 3.13 only"),
        (lambda d: d["rows"][ROW].update(python="3.12"), "rows.2.13-cpu.python: 3.12: debian12 has python 3.11 only"),
        (lambda d: d["rows"][ROW].update(torch=2.13), "rows.2.13-cpu.torch: 2.13: "),
        (lambda d: d["rows"][ROW].update(torch="3.0.0"), "torch: 3.0.0: unknown torch minor version; known are 1.11"),
        (lambda d: d["rows"][ROW].update(device="tpu"), "rows.2.13-cpu.device: 'tpu': Input should be 'cpu'"),
        (lambda d: d["rows"][ROW].update(base="debian11"), "rows.2.13-cpu.base: 'debian11' is not one of debian12"),
        (lambda d: d["rows"][ROW].update(openmpi="5.0.0"), "rows.2.13-cpu.openmpi: 5.0.0: debian12 has openmpi 4.1.4"),
        (lambda d: d["rows"][ROW].update(eop="2020-01-01"), "eop: 2020-01-01: not after ga 2026-07-20"),
        (lambda d: d["rows"][ROW].pop("torch"), "rows.2.13-cpu.torch: missing"),
        (lambda d: d["defaults"].update(lighting="1.0.0"), "defaults: unknown key 'lighting'; did you mean lightning?"),
        (lambda d: d.update(colour="red"), "top level: unknown key 'colour'; allowed are bases, rows"),
        (lambda d: d.pop("rows"), "expected a mapping with the keys defaults, bases and rows"),
    ],
)
def test_a_mistake_gets_one_line(change: Callable[[dict[str, Any]], object], message: str) -> None:
    data = copy.deepcopy(DATA)
    change(data)
    with pytest.raises(ShoalError) as caught:
        parse(data)
    assert str(caught.value).startswith("versions.yaml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_row_lists_those_there_are() -> None:
    with pytest.raises(ShoalError, match=r"no row '2\.13-cpuu'; did you mean 2\.13-cpu\? \(rows: 2\.13-cpu\)"):
        load(ROOT / "versions.yaml").row("2.13-cpuu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: {a: 1, a: 2}", "line 1, column 14: key 'a' is written twice"),
        ("rows: [", "versions.yaml: line 1"),
        ("- a\n- b\n", "expected a mapping"),
    ],
)
def test_text_that_is_not_the_right_yaml(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "versions.yaml"
    path.write_text(text)
    with pytest.raises(ShoalError) as caught:
        load(path)
    assert message in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="cannot be read: No such file"):
        load(tmp_path / "versions.yaml")


@pytest.mark.parametrize(
    "content",
    [
        b"rows: {\xe9: 1}",
        b"rows: {a\x00: 1}",
        b"rows: {? [a, b] : 1}",
        b"rows: {a: {ga: 2026-13-45}}",
        b"[" * 3000,
        b"defaults: [torch]\nrows: {}\nbases: {}",
    ],
)
def test_hostile_content_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "versions.yaml"
    path.write_bytes(content)
    with pytest.raises(ShoalError) as caught:
        load(path)
    assert str(caught.value).startswith("versions.yaml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../pwn", "", "A B", "[red]x"])
def test_a_row_s_name_can_be_a_file_s(name: str) -> None:
    data = copy.deepcopy(DATA)
    data["rows"][name] = data["rows"][ROW]
    with pytest.raises(ShoalError, match="should match pattern"):
        parse(data)


@pytest.mark.parametrize(
    ("day", "support"),
    [
        ("2026-07-19", "planned"),
        ("2026-07-20", "supported"),
        ("2027-07-20", "supported"),
        ("2027-07-21", "ended"),
    ],
)
def test_support_lasts_from_the_first_day_to_the_last(day: str, support: str) -> None:
    row = load(ROOT / "versions.yaml").row("2.13-cpu")
    assert row.support(dt.date.fromisoformat(day)) == support
