"""A job's ranks meet again after whatever ended their last group, and hear of those who never will."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rank_jobs import PYTHON, WORKERS, Rank, clean_environment, free_port, run_ranks

# What the issue allows for a death; the groups' own timeouts are 30 s and more.
SOON = 5


def ranks_of(case: str, size: int, hosts: str = "", dead: Sequence[int] = ()) -> list[Rank]:
    """Those that live on, in rank order."""
    ranks = run_ranks("regrouping", size, case, hosts=hosts, may_fail=dead)
    assert all(ranks[rank].returncode == -signal.SIGKILL for rank in dead)
    alive = [rank for rank in ranks if rank.rank not in dead]
    for rank in alive:
        assert rank.returncode == 0, rank.output
    return alive


def messages(case: str, size: int, hosts: str = "", dead: Sequence[int] = ()) -> list[str]:
    ranks = ranks_of(case, size, hosts, dead)
    for rank in ranks:
        assert rank.report["seconds"] < SOON, rank.report
    return [str(rank.report["message"]) for rank in ranks]


@pytest.mark.parametrize("hosts", ["aaa", "abc", "aabb"])
def test_groups_are_made_again_on_one_store(hosts: str) -> None:
    ranks_of("again_on_one_store", len(hosts), hosts)


@pytest.mark.parametrize("rendezvous", [["--standalone"], ["--master-port", "0"]])
def test_torchrun_restarts_a_job_that_lost_a_rank(rendezvous: list[str]) -> None:
    if rendezvous[0] == "--master-port":
        rendezvous = ["--master-port", str(free_port())]
    command = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2", *rendezvous]
    done = subprocess.run(
        [*command, str(WORKERS / "regrouping.py"), "restarted"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        assert f"rank {rank} done in attempt 2" in done.stdout


@pytest.mark.parametrize("hosts", ["aaa", "abc"])
def test_a_death_while_gloo_is_set_up(hosts: str) -> None:
    for message in messages("death_in_gloos_set_up", 3, hosts, dead=[2]):
        assert "group set-up: rank 2 on" in message


def test_a_death_while_gloo_connects() -> None:
    for message in messages("death_while_gloo_connects", 3, dead=[2]):
        assert "group set-up: rank 2 on" in message


def test_a_failure_while_gloo_is_set_up() -> None:
    *others, failed = messages("failure_in_gloos_set_up", 3)
    assert failed == "smddp: group set-up: no more descriptors"
    assert others == ["smddp: reported by rank 2: group set-up: no more descriptors"] * 2


def test_memory_goes_with_a_maker_that_dies_while_a_group_is_set_up(tmp_path: Path) -> None:
    ranks = run_ranks("regrouping", 3, "death_of_the_memorys_maker", str(tmp_path), may_fail=[0, 2])
    assert "rank 0" in ranks[1].report["message"], ranks[1].report
    made = (tmp_path / "segments").read_text().split()
    assert made
    assert not [name for name in made if (Path("/dev/shm") / name).exists()]


@pytest.mark.parametrize("hosts", ["aaa", "abc"])
def test_a_rank_that_died_before_is_missed_in_a_new_group(hosts: str) -> None:
    for message in messages("death_before_a_new_group", 3, hosts, dead=[2]):
        assert "rank 2 on" in message


def test_survivors_form_a_group_without_the_dead() -> None:
    messages("survivors_form_a_group", 3, dead=[2])


def test_errors_of_a_part_name_ranks_of_the_job() -> None:
    _, first, third = messages("death_in_a_part", 4, dead=[2])
    for message in (first, third):
        assert "rank 2 (1 in its group) on" in message


def test_an_abort_leaves_nothing_of_gloo_to_wait_for() -> None:
    for rank in run_ranks("regrouping", 3, "abort_in_gloos_operation", may_fail=[2])[:2]:
        assert "aborted by rank 0" in rank.report["message"]
        assert rank.report["seconds"] < SOON
        assert rank.seconds < 30, "the process ended, too"


def test_a_receive_from_anybody_ends_when_everybody_has_left() -> None:
    assert "recvAnySource: rank 1 on" in messages("receive_from_nobody", 3)[0]


def test_a_thread_left_in_torch_does_not_end_the_process() -> None:
    """Others end it by SIGABRT, before Python 3.14: see `make_expendable` in smddp_core/torch/expendable.hpp."""

    def ends_with(*arguments: str) -> int:
        command = [PYTHON, str(WORKERS / "left_behind.py"), *arguments]
        return subprocess.run(command, env=clean_environment(), capture_output=True, timeout=60).returncode

    assert ends_with("expendable") == 0
    assert ends_with() == (0 if sys.version_info >= (3, 14) else -signal.SIGABRT)
