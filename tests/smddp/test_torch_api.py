"""The rest of what a group of torch.distributed offers."""

from __future__ import annotations

import pytest
from rank_jobs import run_ranks

ONLY_GLOO = "ValueError: monitored_barrier is only implemented for GLOO"


@pytest.mark.parametrize("hosts", ["aa", "aaa", "abc", "aabb"])
def test_groups_work_objects_and_reductions(hosts: str) -> None:
    for rank, result in enumerate(run_ranks("torch_api", len(hosts), hosts=hosts)):
        report = result.report
        # From torch 2.14 on, the function works for us too.
        assert report["monitored_barrier"] == "" or report["monitored_barrier"].startswith(ONLY_GLOO)
        if rank == 0:
            for error in report["late"].values():
                assert "Timed out after 2 s waiting for rank 1" in error


def test_with_the_debug_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    run_ranks("torch_api", 2)
