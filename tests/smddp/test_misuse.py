"""Ranks that disagree are told so at once; arguments that are wrong on one rank concern that rank alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rank_jobs import WORKERS, Rank, run_ranks

sys.path.insert(0, str(WORKERS))
from misuse import DISAGREEMENTS

SOON = 5


def messages(case: str, size: int, hosts: str = "", env: dict[str, str] | None = None) -> list[str]:
    reports = [rank.report for rank in run_ranks("misuse", size, case, hosts=hosts, env=env)]
    assert all(report["seconds"] < SOON for report in reports), reports
    return [str(report["message"]) for report in reports]


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_ranks_that_disagree_are_told_so(case: str, hosts: str) -> None:
    for message in messages(case, 2, hosts):
        assert "ranks called different operations" in message


def test_ranks_outside_the_group_are_refused() -> None:
    first, _ = messages("refused", 2)
    assert first == (
        "smddp: send to rank 2 in a group of 2; smddp: send to rank -3 in a group of 2; "
        "smddp: recv from rank 7 in a group of 2; smddp: recv from rank 0, which is this rank itself; "
        "smddp: gather: expected 2 tensors, one a rank, got 3; "
        "smddp: gather: tensors must have one type and size: Float [4] beside Float [3]; "
        "smddp: scatter: tensors must have one shape: [3, 1] beside [3]; "
        "smddp: all_to_all_single: 2 split sizes that add up to 6 in a group of 2 for a tensor whose first dimension "
        "is 3"
    )


def test_messages_between_ranks_that_are_not_connected_are_compared() -> None:
    said = messages("by_way_of_rank_0", 4, "aabb")
    for message in said:
        assert "rank 1 called send to rank 2 (Float, 40 bytes, tag 0)" in message
        assert "rank 2 called recv from rank 1 (Float, 44 bytes, tag 0)" in message


def test_messages_that_are_alike_pass_however_late() -> None:
    messages("messages_that_differ_only_in_time", 2)


def test_a_rank_that_gathers_before_it_sends_is_told_who_does_not_come() -> None:
    for said in messages("gathered_before_a_message", 2):
        assert said.startswith("SMDDPTimeoutError: ")
        assert "gather #1 (carried out by another back end): Timed out after 2 s waiting for rank 0" in said


def test_a_reduce_scatter_that_gloo_carries_out() -> None:
    messages("gloos_types", 3)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_wrong_setting_of_one_rank_is_the_error_of_all(wrong: int) -> None:
    said = "SMDDP_NET=carrier-pigeon (environment): expected auto, tcp or fabric"
    for rank in ranks_with_a_wrong_setting(wrong, "SMDDP_NET=carrier-pigeon"):
        reported = "" if rank.rank == wrong else f"reported by rank {wrong}: "
        assert f"SMDDPUsageError: smddp: {reported}{said}" in rank.output


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_all_hear_of_a_rank_that_cannot_read_its_secret(wrong: int) -> None:
    said = "smddp: SMDDP_JOB_SECRET_FILE=/nowhere (environment): expected a readable file that is not empty"
    settings = ["SMDDP_JOB_SECRET=", "SMDDP_JOB_SECRET_FILE=/nowhere"]
    for rank in ranks_with_a_wrong_setting(wrong, *settings, env={"SMDDP_JOB_SECRET": "hush"}):
        if rank.rank == wrong:
            assert f"SMDDPUsageError: {said}" in rank.output
        elif wrong == 0:
            assert "does not know this job's secret" in rank.output
        else:
            assert f"rank {wrong} did not join: {said.removeprefix('smddp: ')}" in rank.output


@pytest.mark.parametrize("wrong", [1, 2])
def test_all_hear_of_a_rank_that_cannot_begin_to_join(wrong: int) -> None:
    said = "SMDDP_SOCKET_IFNAME=nowhere"
    for rank in ranks_with_a_wrong_setting(wrong, said):
        assert (said if rank.rank == wrong else f"rank {wrong} did not join: {said}") in rank.output


def ranks_with_a_wrong_setting(wrong: int, *settings: str, env: dict[str, str] | None = None) -> list[Rank]:
    """All end with an exception, before the 20 s that they have to meet."""
    ranks = run_ranks(
        "misuse", 3, "wrong_setting", str(wrong), *settings, hosts="aab", env=env or {}, may_fail=[0, 1, 2]
    )
    for rank in ranks:
        assert rank.returncode == 1
        assert "did not join in" not in rank.output
    return ranks


def test_a_broken_table_of_rank_0_is_the_error_of_all(tmp_path: Path) -> None:
    table = tmp_path / "missing.json"
    ranks = run_ranks("misuse", 2, "refused", env={"SMDDP_TUNE_FILE": str(table)}, may_fail=[0, 1])
    for rank in ranks:
        assert rank.returncode == 1
        assert f"{table}: No such file or directory" in rank.output
        assert rank.seconds < 30
