"""Every operation, type, size and layout on every path: its definition bit for bit, gloo within rounding."""

from __future__ import annotations

import pytest
from rank_jobs import run_ranks


@pytest.mark.parametrize(
    ("hosts", "path"),
    [
        ("a", "alone"),
        ("aa", "host"),
        ("aaa", "host"),
        ("aaaa", "host"),
        ("abb", "flat"),
        ("aabb", "hierarchical"),
    ],
)
def test_equal_to_the_definition_and_to_gloo(hosts: str, path: str) -> None:
    results = run_ranks("collectives", len(hosts), hosts=hosts, env={"SMDDP_SHM_CHUNK_BYTES": "65536"})
    for result in results:
        assert result.report["path"].startswith(path)
        assert result.report["checks"] > 600


def test_tcp_can_be_forced_on_one_host() -> None:
    results = run_ranks("collectives", 2, env={"SMDDP_TRANSPORT": "tcp", "SMDDP_NET_BLOCK_BYTES": "65536"})
    assert all(result.report["path"] == "flat (TCP)" for result in results)
