"""The transport over libfabric, through torch: results, what is said, and what happens when a rank dies.

libfabric's provider for TCP stands in for EFA, which needs EC2's hardware.
"""

from __future__ import annotations

import ctypes
import signal

import pytest
from rank_jobs import run_ranks

FABRIC = {"SMDDP_NET": "fabric", "SMDDP_FABRIC_PROVIDER": "tcp;ofi_rxm"}


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    try:
        ctypes.CDLL("libfabric.so.1")
    except OSError as error:
        pytest.skip(f"libfabric is not installed (Debian: libfabric-dev, before smddp is compiled): {error}")


@pytest.mark.parametrize(("hosts", "path"), [("ab", "flat"), ("aabb", "hierarchical"), ("abcd", "flat")])
def test_equal_to_the_definition_and_to_gloo(hosts: str, path: str) -> None:
    env = FABRIC | {"SMDDP_FABRIC_SEGMENT_BYTES": "65536", "SMDDP_DEBUG": "INFO"}
    results = run_ranks("collectives", len(hosts), hosts=hosts, env=env, limit=240)
    for result in results:
        assert result.report["path"].startswith(path)
        assert "libfabric, tcp;ofi_rxm on " in result.report["path"]
        assert result.report["checks"] > 600
    assert "libfabric, tcp;ofi_rxm on " in results[0].output


@pytest.mark.parametrize("hosts", ["abc", "aabb"])
def test_a_killed_rank_is_reported_within_seconds(hosts: str) -> None:
    *survivors, dead = run_ranks("failures", len(hosts), "death", hosts=hosts, env=FABRIC, may_fail=range(len(hosts)))
    assert dead.returncode == -signal.SIGKILL
    for survivor in survivors:
        assert survivor.returncode == 0, survivor.output
        assert survivor.report["seconds"] < 5, survivor.report
    messages = [survivor.report["message"] for survivor in survivors]
    assert any(f"rank {dead.rank} on" in message for message in messages), messages


def test_a_group_that_cannot_use_it_says_which_rank_and_why() -> None:
    env = FABRIC | {"SMDDP_FABRIC_PROVIDER": "no_such_provider"}
    results = run_ranks("failures", 2, "death", hosts="ab", env=env, may_fail=range(2))
    for result in results:
        assert result.returncode == 1
        assert "SMDDP_NET=fabric, and not every rank can use it: rank 0 on " in result.output
        assert "no_such_provider" in result.output
