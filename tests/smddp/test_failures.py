"""Failures end in an error that names the cause, soon, on every rank."""

from __future__ import annotations

import signal

import pytest
from rank_jobs import run_ranks


def test_mismatch_timeout_and_abort_are_told_apart() -> None:
    for result in run_ranks("failures", 3, "disagreements"):
        report = result.report
        assert "all_reduce #1 (sum, float32, 12 bytes)" in report["mismatch"]
        assert "all_reduce #1 (sum, float32, 16 bytes)" in report["mismatch"]
        assert report["again"] == report["mismatch"]
        assert "Timed out after 2 s waiting for rank 2" in report["timeout"]
        assert "aborted by rank 0" in report["abort"]
        assert "tensors on meta have no data to exchange" in report["device"]


@pytest.mark.parametrize("hosts", ["aaa", "abb", "aabb"])
def test_a_killed_rank_is_reported_within_seconds(hosts: str) -> None:
    *survivors, dead = run_ranks("failures", len(hosts), "death", hosts=hosts, may_fail=range(len(hosts)))
    assert dead.returncode == -signal.SIGKILL
    for survivor in survivors:
        assert survivor.returncode == 0, survivor.output
        assert survivor.report["seconds"] < 3, survivor.report
        assert "closed its connection" in survivor.report["message"]
    messages = [survivor.report["message"] for survivor in survivors]
    assert any(f"rank {dead.rank} on" in message for message in messages), messages
