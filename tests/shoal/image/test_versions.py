"""versions.yaml: what it may say, and the one line a mistake gets."""

import copy
import datetime as dt
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from shoal.errors import ShoalError
from shoal.image.versions_file import load, parse

ROOT = Path(__file__).resolve().parents[3]
DATA: dict[str, Any] = yaml.safe_load((ROOT / "versions.yaml").read_text())
ROW = "2.13-cpu"


def test_the_committed_file_is_valid() -> None:
    row = load(ROOT / "versions.yaml").row(ROW)
    assert (row.torch, row.python, row.device, row.base) == ("2.13.0", "3.11", "cpu", "debian12")


def test_smp_is_where_its_torch_is() -> None:
    """In the rows whose torch modelparallel/pyproject.toml asks for, and in no other."""
    with (ROOT / "modelparallel" / "pyproject.toml").open("rb") as file:
        [asked] = [Requirement(one) for one in tomllib.load(file)["project"]["dependencies"] if one.startswith("torch")]
    rows = parse(DATA).rows.values()
    assert [row.smp for row in rows] == [row.torch in asked.specifier for row in rows]
    assert {row.smp for row in rows} == {True, False}


def test_a_row_inherits_defaults_and_may_override_them() -> None:
    data = copy.deepcopy(DATA)
    data["rows"][ROW]["lightning"] = "2.5.0"
    assert parse(data).row(ROW).lightning == "2.5.0"
    assert parse(DATA).row(ROW).lightning == DATA["defaults"]["lightning"]


def test_a_row_inherits_from_its_name_its_base_its_release_and_its_device() -> None:
    row = parse(DATA).row("1.12.0-gpu-py38-cu113-ubuntu20.04")
    assert (row.torch, row.device, row.python, row.cuda, row.base) == ("1.12.0", "gpu", "3.8", "11.3", "ubuntu20.04")
    assert (row.ga, row.lightning) == (DATA["releases"]["1.12.0"]["ga"], DATA["releases"]["1.12.0"]["lightning"])
    assert row.size_mb == DATA["devices"]["gpu"]["size_mb"]
    assert row.published is not None
    assert (row.published.nccl, row.published.efa, row.published.openmpi) == ("2.10.3", "1.15.1", "4.1.1")
    assert parse(DATA).row("2.8-gpu-debian11").python == DATA["bases"]["debian11"]["python"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("2.13-cpu", "2.13-cpu"),
        ("2.13.0-cpu-py311", "2.13-cpu"),
        ("2.13.0-cpu-py311-debian12-sagemaker", "2.13-cpu"),
        ("pytorch-training:2.13.0-cpu-py311-debian12-ec2", "2.13-cpu"),
        ("1.12.0-gpu-py38-cu113-ubuntu20.04-sagemaker", "1.12.0-gpu-py38-cu113-ubuntu20.04"),
        ("1.12.0-gpu-py38", "1.12.0-gpu-py38-cu113-ubuntu20.04"),
    ],
)
def test_a_row_is_found_by_its_name_an_alias_or_a_tag(text: str, name: str) -> None:
    assert parse(DATA).find(text) == name


def test_every_published_release_and_every_own_base_has_rows() -> None:
    rows = parse(DATA).rows
    published = {row.torch for row in rows.values() if row.published}
    assert {"1.11.0", "1.12.0", "1.12.1", "1.13.1", "2.0.1", "2.4.0", "2.5.1", "2.8.0", "2.10.0"} <= published
    assert {"debian11", "debian12", "debian13"} <= {row.base for row in rows.values() if not row.published}


def _add(data: dict[str, Any], name: str, **row: object) -> None:
    data["rows"][name] = row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["rows"][ROW].update(pyton="3.11"), "rows.2.13-cpu: unknown key 'pyton'; did you mean python?"),
        (lambda d: d["rows"][ROW].update(python="3.9"), "python: 3.9: torch 2.13.0 has wheels for 3.10 to 3.13 only"),
        (lambda d: d["rows"][ROW].update(python="3.12"), "rows.2.13-cpu.python: 3.12: debian12 has python 3.11 only"),
        (lambda d: d["rows"][ROW].update(torch=2.13), "rows.2.13-cpu.torch: 2.13: "),
        (
            lambda d: d["rows"][ROW].update(torch="2.13.9"),
            "torch: 2.13.9: not one of the releases of this file: 1.11.0",
        ),
        (
            lambda d: d["rows"][ROW].update(torch="3.0.0", ga=dt.date(2030, 1, 1), eop=dt.date(2031, 1, 1)),
            "torch: 3.0.0: unknown torch minor version; known are 1.11",
        ),
        (lambda d: d["rows"][ROW].update(device="tpu"), "rows.2.13-cpu.device: 'tpu': Input should be 'cpu' or 'gpu'"),
        (lambda d: d["rows"][ROW].update(base="debian7", python="3.11"), "base: 'debian7' is not one of debian11"),
        (lambda d: d["rows"][ROW].update(cuda="12.4"), "cuda: 12.4: a row of device cpu has none"),
        (lambda d: d["rows"]["2.5-gpu"].pop("cuda"), "cuda: missing: a row of device gpu says which"),
        (
            lambda d: d["rows"]["2.5-gpu"].update(cuda="13.0"),
            "rows.2.5-gpu: cuda: 13.0: torch 2.5.1 has wheels for CUDA 12.4, 11.8, 12.1 only",
        ),
        (
            lambda d: _add(d, "2.0.1-gpu-py310-cu118-debian12"),
            "rows.2.0.1-gpu-py310-cu118-debian12.python: 3.10: debian12 has python 3.11 only",
        ),
        (
            lambda d: _add(d, "again", torch="2.13.0", device="cpu", base="debian12"),
            "rows.again: has the tag 2.13.0-cpu-py311-debian12 as rows.2.13-cpu has",
        ),
        (
            lambda d: _add(d, "2.0.1-cpu-py310-debian13"),
            "rows.2.0.1-cpu-py310-debian13: excluded: its Python is 3.13 and torch has no wheels for it yet",
        ),
        (lambda d: d["exclude"].append({"torch": "new", "reason": "x"}), "new: not a version specifier such as >=2.9"),
        (lambda d: d["exclude"].append({"torch": ">=9"}), "reason: missing"),
        (lambda d: d["aliases"].update({"2.13.0-cpu-py311": "2.5-gpu"}), "aliases.2.13.0-cpu-py311: not the beginning"),
        (lambda d: d["aliases"].update({"2.13.0-cpu-py311": "2.5-gpuu"}), "'2.5-gpuu': no such row"),
        (lambda d: d["releases"]["2.5.1"].update(gaa="x"), "releases.2.5.1: unknown key 'gaa'; did you mean ga?"),
        (
            lambda d: d["rows"]["2.5.1-gpu-py311-cu124-ubuntu22.04"]["published"].update(ncll="2.23.4"),
            "published: unknown key 'ncll'; did you mean nccl?",
        ),
        (lambda d: d["rows"][ROW].update(openmpi="5.0.0"), "rows.2.13-cpu.openmpi: 5.0.0: debian12 has openmpi 4.1.4"),
        (lambda d: d["rows"][ROW].update(eop="2020-01-01"), "eop: 2020-01-01: not after ga 2026-07-20"),
        (lambda d: d["rows"][ROW].pop("torch"), "rows.2.13-cpu.torch: missing"),
        (lambda d: d["defaults"].update(lighting="1.0.0"), "defaults: unknown key 'lighting'; did you mean lightning?"),
        (lambda d: d.update(colour="red"), "top level: unknown key 'colour'; allowed are defaults, devices"),
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


def test_an_unknown_row_is_told_the_nearest() -> None:
    with pytest.raises(
        ShoalError, match=r"no row '2\.13-cpuu'; did you mean 2\.13-cpu\? \(`shoal list` shows the \d+ there are\)"
    ):
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
