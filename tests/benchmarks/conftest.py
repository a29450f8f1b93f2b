"""Runs of the benchmarks in their smallest form. What is asserted is what they say, never how fast anything was."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for what is compiled, the same for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("hosts in network namespaces need root")
