"""The source tree's `shoal_entrypoint` is what is tested, not an installed copy of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parents[1] / "entrypoint" / "src"):
    sys.path.insert(0, str(folder))

from cluster import Cluster, MakeCluster, missing_tools  # noqa: E402


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """A factory of hosts; what it started and made is gone afterwards."""
    lacking = missing_tools()
    if lacking:
        pytest.skip(f"real hosts need root and {', '.join(lacking)}")
    made: list[Cluster] = []

    def make(count: int = 2, names: list[str] | None = None) -> Cluster:
        made.append(Cluster(tmp_path / f"cluster-{len(made)}", count, names))
        return made[-1]

    yield make
    for each in made:
        each.close()
