"""Fixtures: `shoal report` as a user runs it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test modules are imported by file: they find helpers no other way
ROOT = Path(__file__).resolve().parents[3]
Report = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def report() -> Report:
    """Return a function that runs `shoal report`."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "shoal", "report", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)

    return run
