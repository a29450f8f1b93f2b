"""docs/smp-api.md is what the docstrings say, and says something of every public name; the drawing is current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import smdistributed.modelparallel.torch as smp

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "smp-api.md").read_text()


def test_the_page_is_current() -> None:
    argv = [sys.executable, str(ROOT / "scripts" / "smp_api.py"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", [n for n in smp.__all__ if n not in ("amp", "nn", "optimizers", "tp", *vars(smp.CommGroup))]
)
def test_every_public_name_is_on_it(name: str) -> None:
    titles = [line for line in PAGE.splitlines() if line.startswith("### smp.")]
    assert f"### smp.{name}" in titles


def test_nothing_of_the_machine_that_wrote_it_is_on_it() -> None:
    assert str(ROOT) not in PAGE
    assert " object at 0x" not in PAGE
    assert "<module" not in PAGE


def test_the_drawing_is_current() -> None:
    """docs/pictures/smp-call.svg is what scripts/smp_pictures.py draws."""
    code = "import smp_pictures, sys; sys.stdout.write(smp_pictures.picture())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts", capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == (ROOT / "docs" / "pictures" / "smp-call.svg").read_text()
