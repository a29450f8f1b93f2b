"""The content hash, the comparison of measured with declared, and the command line's answers to bad input."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.image import build, measure
from shoal.image.layers import step
from shoal.image.versions import Versions
from shoal.image.versions_file import load, parse

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = load(ROOT / "versions.yaml")
ROW = VERSIONS.row("2.13-cpu")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with what a build of the row reads, and some things it does not."""
    for name in ("images", "entrypoint", "smddp_core", "modelparallel"):
        ignored = shutil.ignore_patterns("build", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / ".dockerignore", tmp_path)
    return tmp_path


def content_hash(root: Path, versions: Versions = VERSIONS) -> str:
    return build.content_hash(versions, "2.13-cpu", root)


def test_what_goes_into_an_image_changes_its_hash(clone: Path) -> None:
    text = (ROOT / "versions.yaml").read_text()
    seen = {content_hash(clone), content_hash(clone, parse(yaml.safe_load(text.replace("bookworm", "bullseye"))))}
    changed = ["images/scripts/pip-install.sh", "images/locks/2.13-cpu.txt", "entrypoint/pyproject.toml"]
    for relative in (*changed, "modelparallel/pyproject.toml"):
        with (clone / relative).open("a") as stream:
            stream.write("# changed\n")
        seen.add(content_hash(clone))
    (clone / "images/scripts/apt-install.sh").chmod(0o644)
    seen.add(content_hash(clone))
    assert len(seen) == 7


def test_what_does_not_go_in_leaves_the_hash_alone(clone: Path) -> None:
    before = content_hash(clone)
    strangers = (
        "README.md",
        "images/locks/other-row.txt",
        "smddp_core/build/x.o",
        "wheelhouse/2.13-cpu/a.whl",
        "shoal/a.py",
    )
    for relative in strangers:
        path = clone / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("anything")
    assert content_hash(clone) == before


def measured(**changes: Any) -> dict[str, Any]:
    return {**{key: getattr(ROW, key) for key in measure.DECLARED}, "smddp": True, "smp": "1.15.0", **changes}


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, []),
        ({"torch": "2.13.1"}, ["torch: declared 2.13.0, measured 2.13.1"]),
        ({"device": "gpu"}, ["device: declared cpu, measured gpu"]),
        ({"openmpi": None}, ["openmpi: declared 4.1.4, measured None"]),
        ({"smp": None}, ["smp: declared True, measured nothing that can be imported"]),
        ({"smddp": False}, ["smddp: not registered with torch.distributed"]),
    ],
)
def test_measured_against_declared(changes: dict[str, Any], lines: list[str]) -> None:
    assert measure.differences(ROW, measured(**changes)) == lines


@pytest.mark.parametrize(("size_bytes", "fits"), [(1, True), (1_050_000_000, True), (1_050_000_001, False)])
def test_an_image_may_be_five_percent_over_its_budget(size_bytes: int, fits: bool) -> None:
    said = measure.over_budget("a-row", size_bytes, 1000)
    assert (said is None) is fits
    assert fits or said == (
        "a-row: 1050 MB, more than its budget of 1000 MB + 5%: `shoal size a-row` shows where the bytes are; if they"
        " are worth it, raise rows.a-row.size_mb in versions.yaml"
    )


@pytest.mark.parametrize(
    ("created_by", "words"),
    [
        ("RUN /bin/sh -c /build/scripts/pip-install.sh /build/2.13-cpu.txt # buildkit", "pip-install.sh 2.13-cpu.txt"),
        ("COPY images/files/sshd /usr/sbin/ # buildkit", "COPY images/files/sshd /usr/sbin/"),
        ("/bin/sh -c #(nop) ADD file:0 in / ", "ADD file:0 in /"),
        ("", "base"),
    ],
)
def test_a_layer_is_named_by_its_step(created_by: str, words: str) -> None:
    assert step(created_by) == words


def shoal(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )


def test_build_of_an_unknown_row() -> None:
    done = shoal("build", "2.12-cpu")
    assert done.returncode == 2
    assert done.stdout == ""
    line = (
        r"shoal: versions.yaml: no row '2\.12-cpu'; did you mean 2\.13-cpu\? \(`shoal list` shows the \d+ there are\)\n"
    )
    assert re.fullmatch(line, done.stderr)


def test_outside_a_clone(tmp_path: Path) -> None:
    done = shoal("list", cwd=tmp_path)
    assert done.returncode == 2
    assert "no versions.yaml in" in done.stderr


def test_list_as_data() -> None:
    done = shoal("list", "--json")
    assert done.returncode == 0
    assert '"torch": "2.13.0"' in done.stdout
    assert "\x1b" not in done.stdout
