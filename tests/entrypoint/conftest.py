"""The source tree's `shoal_entrypoint` is what is tested, not an installed copy of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parents[1] / "entrypoint" / "src"):
    sys.path.insert(0, str(folder))

from cluster import SHIM, Cluster, MakeCluster, missing_tools  # noqa: E402


@pytest.fixture(scope="session")
def _shim() -> None:
    """The host name shim, beside the source that needs it."""
    source = SHIM.parent / "hostname.c"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", source, "-o", SHIM], check=True)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeCluster]:
    """A factory of hosts; what it started and made is gone afterwards."""
    lacking = missing_tools()
    if lacking:
        pytest.skip(f"real hosts need root and {', '.join(lacking)}")
    request.getfixturevalue("_shim")
    made: list[Cluster] = []

    def make(count: int = 2, names: list[str] | None = None) -> Cluster:
        made.append(Cluster(tmp_path / f"cluster-{len(made)}", count, names))
        return made[-1]

    yield make
    for each in made:
        each.close()
