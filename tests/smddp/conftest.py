"""Tests of the installed `smddp`, through torch, in real processes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from rank_jobs import PYTHON


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    if sys.executable != PYTHON:
        subprocess.run([PYTHON, "-c", "import smdistributed.dataparallel.torch.torch_smddp"], check=True)
        return
    try:
        found = importlib.util.find_spec("smdistributed.dataparallel._C")
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.fail("smddp is not installed in this environment: run `make smddp`", pytrace=False)
