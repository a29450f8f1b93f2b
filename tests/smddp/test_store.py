"""A store that does not answer keeps nobody past the group's timeout; a rank 0 that cannot say where it is says why."""

from __future__ import annotations

import pytest
from rank_jobs import run_ranks

# After the timeout of 3 s.
SOON = 5


@pytest.mark.parametrize("case", ["init_without_answer", "new_group_without_answer"])
@pytest.mark.parametrize("hosts", ["aaa", "ab"])
def test_a_store_whose_keeper_is_stopped(case: str, hosts: str) -> None:
    _, *others = run_ranks("store", len(hosts), case, hosts=hosts, may_fail=[0], stopped=[0])
    for rank in others:
        assert rank.returncode == 0, rank.output
        assert rank.report["seconds"] < 3 + SOON, rank.report
        said = "the store, which rank 0 or the launcher keeps, does not answer; waited 3 s"
        assert said in rank.report["message"]


def test_a_rank_0_that_cannot_start_says_why_and_may_try_again() -> None:
    zero, *others = run_ranks("store", 3, "refusal")
    said = "SMDDP_SOCKET_IFNAME=nope0 matches no interface that is up (there are: "
    assert said in zero.report["message"]
    for rank in others:
        assert rank.report["seconds"] < SOON, rank.report
        assert f"rank 0 did not join: {said}" in rank.report["message"]


def test_a_rank_alone_is_told_the_same() -> None:
    (alone,) = run_ranks("store", 1, "refusal")
    assert "SMDDP_SOCKET_IFNAME=nope0 matches no interface" in alone.report["message"]
