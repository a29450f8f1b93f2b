"""Tensors on a real GPU: run where there is one. One is enough, since ranks share it.

NCCL refuses two ranks on one GPU of a host. Here it is told that every rank has a host of its own (NCCL_HOSTID), so
that it takes part, over sockets; SMDDP_HOST_ID says which ranks smddp takes for neighbours.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_jobs import Rank, run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists() or not torch.cuda.is_available(), reason="no GPU here"),
]

# NCCL over loopback.
LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "SMDDP_GPU_EXCHANGE": "always"}


def run(hosts: str, *arguments: str, own_gpus: bool, may_fail: list[int] | None = None) -> list[Rank]:
    """Ranks of test_gpu's worker; `own_gpus`: NCCL takes part."""
    size = len(hosts)

    def prefix(rank: int) -> list[str]:
        return ["env", f"NCCL_HOSTID=host{rank}"] if own_gpus else ["env"]

    return run_ranks("gpu", size, *arguments, hosts=hosts, env=LOOPBACK, prefix=prefix, may_fail=may_fail or [])


@pytest.mark.parametrize("hosts", ["aa", "aaaa", "ab"])
def test_ranks_that_share_a_gpu(hosts: str) -> None:
    """By way of the host, which NCCL cannot do."""
    for result in run(hosts, own_gpus=False):
        report = result.report
        assert report["crossed"] == 4000
        assert report["busy"], "the call waited for the GPU"
        assert "cannot be part of a CUDA graph" in report["graph"]
        assert "left to NCCL" in report["messages"]
        assert report["layouts"] == ""


@pytest.mark.parametrize(("hosts", "crossed"), [("aa", 0), ("ab", 4000), ("aabb", 2000)])
def test_ranks_with_gpus_of_their_own(hosts: str, crossed: int) -> None:
    """On one host all is NCCL's; between hosts all-reduces take our exchange, a shard each rank of a host."""
    for result in run(hosts, own_gpus=True):
        report = result.report
        assert report["crossed"] == crossed
        assert report["busy"], "the call waited for the GPU"
        assert report["graph"] == ""
        assert report["messages"] == ""
        # NCCL itself refuses it.
        assert report["layouts"] == ("" if crossed else "Tensors must be contiguous")


@pytest.mark.parametrize(("hosts", "own_gpus"), [("aaa", False), ("aaa", True), ("aabb", True)])
def test_a_rank_that_dies_is_named(hosts: str, own_gpus: bool) -> None:
    last = len(hosts) - 1
    for result in run(hosts, "death", own_gpus=own_gpus, may_fail=[last])[:last]:
        assert "SMDDPPeerError" in result.report["error"]
        assert f"rank {last}" in result.report["error"]
        assert result.report["seconds"] < 20
