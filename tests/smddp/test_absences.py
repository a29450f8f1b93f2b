"""A rank that is gone is missed at once, whomever the others wait for, and in whose operation."""

from __future__ import annotations

import re
import signal

import pytest
from rank_jobs import run_ranks

# What the issue allows for a death; the group's own timeout is 30 s.
SOON = 5


def messages(case: str, hosts: str = "aaa", dead: int | None = None) -> list[str]:
    """What each rank reports, in rank order, without the one that was killed."""
    ranks = run_ranks("absences", len(hosts), case, hosts=hosts, may_fail=[] if dead is None else [dead])
    alive = [rank for rank in ranks if rank.rank != dead]
    if dead is not None:
        assert ranks[dead].returncode == -signal.SIGKILL
    for rank in alive:
        assert rank.returncode == 0, rank.output
        assert rank.report["seconds"] < SOON, rank.report
    return [str(rank.report["message"]) for rank in alive]


@pytest.mark.parametrize("hosts", ["aaa", "abc", "aabb"])
def test_a_death_is_noticed_while_another_rank_is_waited_for(hosts: str) -> None:
    dead = len(hosts) - 1
    _, *waiting = messages("death_beside_an_absence", hosts, dead)
    for message in waiting:
        assert "all_reduce #" in message
        assert f"rank {dead} on" in message
        assert "closed its connection" in message


@pytest.mark.parametrize("hosts", ["aaa", "abc"])
def test_so_is_a_rank_that_left_too_early(hosts: str) -> None:
    assert "rank 2 on" in messages("departure_beside_an_absence", hosts)[1]


@pytest.mark.parametrize("hosts", ["aaa", "abc", "aabb"])
def test_errors_name_the_exception_that_ended_the_missing_rank(hosts: str) -> None:
    last = len(hosts) - 1
    ranks = run_ranks("absences", len(hosts), "uncaught_exception", hosts=hosts, may_fail=[last])
    assert ranks[last].returncode == 1
    for rank in ranks[:last]:
        assert rank.report["seconds"] < SOON, rank.report
        message = str(rank.report["message"])
        assert f"rank {last} on" in message
        assert "closed its connection (its process ended with ValueError: the labels are gone? \u4e00" in message
        assert message.endswith("\u4e00...)")


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("destroyed_in_finally", "closed its connection (it left while handling ValueError: the labels are gone)"),
        ("aborted_in_except", "was aborted by rank {last} while handling ValueError: the labels are gone"),
    ],
)
@pytest.mark.parametrize("hosts", ["aaa", "aabb"])
def test_so_they_do_where_it_ends_its_groups_itself(case: str, said: str, hosts: str) -> None:
    last = len(hosts) - 1
    ranks = run_ranks("absences", len(hosts), case, hosts=hosts, may_fail=[last])
    assert ranks[last].returncode == 1
    for rank in ranks[:last]:
        assert rank.report["seconds"] < SOON, rank.report
        assert str(rank.report["message"]).endswith(said.format(last=last))


def test_so_they_do_where_multiprocessing_started_it() -> None:
    message = str(run_ranks("spawned", 1)[0].report["message"])
    assert message.endswith("closed its connection (its process ended with KeyError: 'a column')")


@pytest.mark.parametrize("hosts", ["aaa", "abc"])
def test_so_they_do_where_it_caught_the_error_of_another_group(hosts: str) -> None:
    message = messages("caught_elsewhere", hosts)[0]
    assert re.search(r"closed its connection \(it left after group \S+ had failed: .*different operations", message)


@pytest.mark.parametrize("hosts", ["aaa", "aabb"])
def test_a_rank_that_did_its_part_may_leave(hosts: str) -> None:
    assert not any(messages("late_end", hosts))


@pytest.mark.parametrize("case", ["recv", "recv_any"])
def test_a_death_ends_a_receive_from_another_rank(case: str) -> None:
    message = messages(case, dead=2)[0]
    assert message.startswith("smddp: recv")
    assert "rank 2 on" in message


def test_abort_ends_a_receive() -> None:
    assert "aborted by rank 0" in messages("abort_while_receiving")[0]


def test_a_rank_that_does_not_come_to_a_gather_is_named_and_ends_the_group() -> None:
    first, second, _ = messages("silence_in_gather")
    for message in (first, second):
        assert "gather #1 (carried out by another back end): Timed out after 2 s waiting for rank 2 on" in message


def test_what_else_gloo_gives_up_has_the_same_cause() -> None:
    assert "recv: Timed out waiting for rank 1 on" in messages("two_receives")[0]


def test_a_send_to_a_dead_rank_names_it() -> None:
    for message in messages("send_to_the_dead", dead=2):
        assert "send: rank 2 on" in message


def test_a_wait_that_runs_out_says_for_whom_and_ends_nothing() -> None:
    first, _, third = messages("limited_wait")
    for message in (first, third):
        assert "all_reduce: not done after 1000 ms" in message
        assert "waiting for rank 1 on" in message


def test_a_forked_child_that_ends_like_a_program_ends() -> None:
    assert messages("forked_child") == ["0", "0", "0"]
