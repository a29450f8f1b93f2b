"""Failures end in an error that names the cause, soon, on every rank."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from net_hosts import NetHosts, missing_tools
from rank_jobs import INSIDE, Rank, run_ranks


@pytest.fixture(autouse=True)
def _nothing_stays_in_shared_memory() -> Iterator[None]:
    segments = Path("/dev/shm")
    before = set(segments.glob("smddp*"))
    yield
    left = set(segments.glob("smddp*")) - before
    assert not left


# Less than the groups' own timeout of 30 s, much more than any of the errors takes.
SOON = 20


def messages_of(ranks: list[Rank]) -> list[str]:
    """The errors of ranks that ended well, each of which came soon and says who it is from once."""
    for rank in ranks:
        assert rank.returncode == 0, rank.output
        assert rank.report["seconds"] < SOON, rank.report
    messages = [str(rank.report["message"]) for rank in ranks]
    assert all(message.count("smddp: ") <= 1 for message in messages), messages
    return messages


def test_mismatch_timeout_and_abort_are_told_apart() -> None:
    for result in run_ranks("failures", 3, "disagreements"):
        report = result.report
        assert "all_reduce #1 (sum, float32, 12 bytes)" in report["mismatch"]
        assert "all_reduce #1 (sum, float32, 16 bytes)" in report["mismatch"]
        assert report["again"] == report["mismatch"]
        assert "Timed out after 2 s waiting for rank 2" in report["timeout"]
        assert "aborted by rank 0" in report["abort"]
        # torch 1.13 refuses them itself, before we are asked.
        assert re.search("tensors on meta have no data to exchange|Could not run 'c10d::allreduce_'", report["device"])


def test_jobs_of_train_keep_the_last_operations(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    env = {"SM_OUTPUT_DATA_DIR": str(tmp_path / "data")}
    run_ranks("failures", 3, "death", env=env, may_fail=range(3))
    assert len(list((tmp_path / "data" / "smddp").glob("smddp-flight-*-rank*.jsonl"))) == 2


@pytest.mark.parametrize("case", ["death", "death_inside"])
@pytest.mark.parametrize(
    ("hosts", "inside"),
    [
        ("aaa", "slots"),
        ("aaa", "mailboxes"),
        ("aaa", "direct"),
        ("abb", "slots"),
        ("aabb", "mailboxes"),
        ("aabb", "direct"),
    ],
)
def test_a_killed_rank_is_reported_within_seconds(hosts: str, inside: str, case: str, tmp_path: Path) -> None:
    *survivors, dead = run_ranks(
        "failures",
        len(hosts),
        case,
        hosts=hosts,
        env={"SMDDP_FLIGHT_RECORDER_DIR": str(tmp_path), **INSIDE[inside]},
        may_fail=range(len(hosts)),
    )
    assert dead.returncode == -signal.SIGKILL
    messages = messages_of(survivors)
    assert all("closed its connection" in message for message in messages)
    assert any(f"rank {dead.rank} on" in message for message in messages), messages
    # Every survivor wrote down its last operations, and its error says where.
    for message in messages:
        lines = [
            json.loads(line) for line in Path(message.split("(last operations: ")[1][:-1]).read_text().splitlines()
        ]
        assert lines[-1]["state"] == "failed"
        assert lines[-1]["operation"] == "all_reduce"


@pytest.mark.parametrize("hosts", ["aaa", "aabb"])
def test_a_stopped_rank_is_named_at_the_timeout(hosts: str) -> None:
    size = len(hosts)
    *survivors, stopped = run_ranks("failures", size, "silence", hosts=hosts, may_fail=[size - 1], stopped=[size - 1])
    assert stopped.returncode == -signal.SIGKILL
    for message in messages_of(survivors):
        assert f"Timed out after 2 s waiting for rank {size - 1} on" in message


@pytest.mark.parametrize("hosts", ["abc", "aabb"])
def test_ranks_that_wait_themselves_are_not_blamed(hosts: str) -> None:
    *early, late = run_ranks("failures", len(hosts), "absence", hosts=hosts)
    for message in messages_of(early):
        assert f"Timed out after 2 s waiting for rank {late.rank} on" in message
    assert "reported by rank" in late.report["message"]


@pytest.mark.skipif(bool(missing_tools()), reason=f"this machine lacks {', '.join(missing_tools())}")
def test_a_host_that_is_cut_off_is_given_up_after_the_link_timeout() -> None:
    with NetHosts(2) as net:
        env = {"MASTER_ADDR": "10.97.0.1", "SMDDP_SOCKET_IFNAME": "eth0", "SMDDP_LINK_TIMEOUT": "3"}
        ranks = run_ranks("failures", 2, "cut", hosts="ab", env=env, prefix=net.enter)
    for message in messages_of(ranks):
        assert "cannot be reached any more" in message


@pytest.mark.parametrize("hosts", ["aaa", "aabb"])
def test_an_operation_of_the_fallback_against_one_of_ours(hosts: str) -> None:
    for message in messages_of(run_ranks("failures", len(hosts), "delegated", hosts=hosts)):
        assert "ranks called different operations" in message


def test_abort_from_another_thread_wakes_everyone() -> None:
    for message in messages_of(run_ranks("failures", 3, "abort")):
        assert "aborted by rank" in message


def test_a_death_while_a_group_is_set_up() -> None:
    first, late, dead = run_ranks("failures", 3, "joining_death", may_fail=[2])
    assert dead.returncode == -signal.SIGKILL
    (message,) = messages_of([first])
    assert "rank 2 closed its connection" in message
    assert "while the group was being set up" in message
    assert late.report["message"]


@pytest.mark.parametrize(("left", "what"), [(3, "socket"), (8, "gloo needs")])
def test_exhausted_descriptors_while_a_group_is_set_up(left: int, what: str) -> None:
    """Enough to listen and to meet rank 0; or for all of ours, but not for gloo, which would end the process."""
    *others, starved = messages_of(run_ranks("failures", 3, "joining_descriptors", str(left)))
    assert what in starved
    assert "ulimit -n" in starved
    for message in others:
        assert "reported by rank 2" in message
        assert "ulimit -n" in message
