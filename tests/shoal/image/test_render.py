"""Rendered Dockerfiles: committed, in the 1.2 subset of the syntax, and checked for drift."""

import re
import shutil
from pathlib import Path

import jinja2
import pytest

from shoal.errors import ShoalError
from shoal.image import render
from shoal.image.versions_file import load

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = load(ROOT / "versions.yaml")
ROWS = list(VERSIONS.rows)


def test_committed_dockerfiles_are_up_to_date() -> None:
    render.check(VERSIONS, ROOT)


@pytest.fixture
def copy_of_images(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "images", tmp_path / "images")
    return tmp_path


def test_check_finds_drift(copy_of_images: Path) -> None:
    path = render.rendered_path("2.13-cpu", copy_of_images)
    path.write_text(path.read_text() + "# edited by hand\n")
    (path.parent / "1.0-cpu.Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(
        ShoalError, match=r"2\.13-cpu\.Dockerfile is out of date; 1\.0-cpu\.Dockerfile belongs to no row"
    ):
        render.check(VERSIONS, copy_of_images)


def test_a_name_the_template_does_not_know_is_an_error(copy_of_images: Path) -> None:
    template = copy_of_images / "images" / "templates" / "Dockerfile.j2"
    template.write_text(template.read_text() + "{{ row.pyton }}\n")
    with pytest.raises(jinja2.UndefinedError, match="pyton"):
        render.render(VERSIONS, "2.13-cpu", copy_of_images)


@pytest.mark.parametrize("row", ROWS)
def test_old_engines_can_build_it(row: str) -> None:
    text = render.render(VERSIONS, row, ROOT)
    assert "<<" not in text, "heredocs need syntax 1.4"
    assert not re.search(r"^#\s*syntax", text, re.MULTILINE), "a syntax line needs a registry"
    assert "--link" not in text, "--link needs syntax 1.4"
    assert not re.search(r"--mount=\S*\$", text), "variables in mounts need syntax 1.3"


@pytest.mark.parametrize("row", ROWS)
def test_the_last_stage_descends_from_no_stage_with_a_compiler(row: str) -> None:
    parents: dict[str, str] = {}
    compilers: set[str] = set()
    stage = ""
    for line in render.render(VERSIONS, row, ROOT).splitlines():
        if match := re.match(r"FROM (\S+) AS (\S+)", line):
            parent, stage = match.groups()
            parents[stage] = parent
        elif line.strip().startswith("g++"):
            compilers.add(stage)
    assert compilers == {"compiler"}
    lineage = ["sagemaker"]
    while lineage[-1] in parents:
        lineage.append(parents[lineage[-1]])
    assert lineage == ["sagemaker", "runtime", "torch", "base", f"shoal-base:{VERSIONS.row(row).base}"]
