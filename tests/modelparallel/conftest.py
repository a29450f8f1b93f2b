"""Tests of modelparallel/: of this tree's sources, nothing need be installed but torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REQUIREMENTS = HERE.parents[1] / "requirements" / "clients.txt"
NO_NETWORK = ("Temporary failure in name resolution", "Network is unreachable", "Name or service not known")
# First, so that an installed copy is not tested instead.
sys.path[:0] = [str(HERE.parents[1] / "modelparallel" / "python"), str(HERE), str(HERE.parent / "forking")]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the clients' packages: beside the environment, which has later ones."""
    folder = tmp_path_factory.mktemp("clients")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and any(words in done.stderr for words in NO_NETWORK) and "CI" not in os.environ:
        pytest.skip("no network to install the clients' packages")
    assert done.returncode == 0, done.stderr
    return folder
