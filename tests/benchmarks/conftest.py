"""Runs of the benchmarks in their smallest form. What is asserted is what they say, never how fast anything was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from harness.layout import Layout
from harness.network import NetworkError, network


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for what is compiled, the same for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def _hosts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where hosts cannot be made: without root, or on a kernel without namespaces or the shaper."""
    try:
        with network(Layout(2, 1, "1gbit"), tmp_path_factory.mktemp("hosts")):
            pass
    except NetworkError as error:
        pytest.skip(str(error))
