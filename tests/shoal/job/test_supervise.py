"""When hosts are told to stop: each test is a timeline."""

import pytest

from shoal.job.attempt import why
from shoal.job.supervise import FAILED_STOP_GRACE_S, PEER_GRACE_S, STOP_GRACE_S, Supervisor


@pytest.fixture
def job() -> Supervisor:
    return Supervisor(("a", "b", "c"), started=0, max_runtime_s=1000)


def test_a_host_that_ends_well_stops_nobody(job: Supervisor) -> None:
    job.exited("a", 0, 1)
    assert job.due(999) is None
    assert job.running == ["b", "c"]
    job.exited("b", 0, 2)
    job.exited("c", 0, 3)
    assert (job.done, job.reason) == (True, None)


def test_after_a_failure_the_others_have_time_then_term_then_kill(job: Supervisor) -> None:
    job.exited("b", 1, 5)
    assert job.reason == "failed"
    assert job.next_deadline == 5 + PEER_GRACE_S
    assert job.due(5 + PEER_GRACE_S - 0.1) is None
    assert job.due(5 + PEER_GRACE_S) == "SIGTERM"
    assert job.due(5 + PEER_GRACE_S) is None
    job.exited("a", 143, 16)
    kill_at = 5 + PEER_GRACE_S + FAILED_STOP_GRACE_S
    assert job.next_deadline == kill_at
    assert job.due(kill_at) == "SIGKILL"
    assert job.running == ["c"]
    job.exited("c", 137, kill_at)
    assert (job.done, job.reason, job.due(9999)) == (True, "failed", None)


def test_a_second_failure_does_not_start_the_clock_again(job: Supervisor) -> None:
    job.exited("a", 1, 5)
    job.exited("b", 1, 6)
    assert job.next_deadline == 5 + PEER_GRACE_S


def test_ctrl_c_once_is_term_and_two_minutes(job: Supervisor) -> None:
    job.interrupt(50)
    assert job.due(50) == "SIGTERM"
    assert job.due(50 + STOP_GRACE_S - 1) is None
    assert job.due(50 + STOP_GRACE_S) == "SIGKILL"
    for host in job.hosts:
        job.exited(host, 137, 171)
    assert job.reason == "interrupted"


def test_whoever_is_killed_is_told_why(job: Supervisor) -> None:
    job.interrupt(50)
    assert why("SIGTERM", job) == "stopping; 120 s to end, Ctrl-C again kills at once"
    assert why("SIGKILL", job) == "not ended 120 s after SIGTERM"
    job.interrupt(60)
    assert why("SIGKILL", job) == "Ctrl-C again"
    failed = Supervisor(("a", "b"), started=0, max_runtime_s=1000)
    failed.exited("a", 1, 5)
    assert why("SIGKILL", failed) == "not ended 30 s after SIGTERM"


def test_ctrl_c_twice_kills_at_once_even_before_term_was_sent(job: Supervisor) -> None:
    job.interrupt(50)
    job.interrupt(50)
    assert job.due(50) == "SIGKILL"
    assert job.due(50) is None


def test_ctrl_c_in_a_failing_job_stops_it_now_and_it_stays_failed(job: Supervisor) -> None:
    job.exited("a", 1, 5)
    job.interrupt(6)
    assert job.due(6) == "SIGTERM"
    job.interrupt(7)
    assert job.due(7) == "SIGKILL"
    assert job.reason == "failed"


def test_max_runtime_is_term_and_two_minutes_and_ctrl_c_shortens_it(job: Supervisor) -> None:
    assert job.next_deadline == 1000
    assert job.due(1000) == "SIGTERM"
    assert job.reason == "max-runtime"
    assert job.next_deadline == 1000 + STOP_GRACE_S
    job.interrupt(1001)
    assert job.due(1001) == "SIGKILL"
    assert job.reason == "max-runtime"


def test_a_host_that_fails_while_stopping_does_not_change_the_reason(job: Supervisor) -> None:
    job.interrupt(1)
    job.exited("a", 1, 2)
    assert job.reason == "interrupted"


def test_an_interruption_is_term_and_two_minutes() -> None:
    job = Supervisor(("a", "b"), started=9, max_runtime_s=1000, spot_after_s=5)
    assert job.next_deadline == 1009
    job.up(10)
    assert job.next_deadline == 15
    assert job.due(14) is None
    assert job.due(15) == "SIGTERM"
    assert job.due(15 + STOP_GRACE_S - 1) is None
    assert job.due(15 + STOP_GRACE_S) == "SIGKILL"
    job.exited("a", 143, 16)
    job.exited("b", 0, 16)
    assert job.reason == "spot"


def test_a_job_that_fails_or_reaches_its_time_is_not_interrupted_any_more() -> None:
    job = Supervisor(("a", "b"), started=0, max_runtime_s=1000, spot_after_s=5)
    job.up(0)
    job.exited("a", 1, 4)
    assert (job.due(5), job.reason) == (None, "failed")
    short = Supervisor(("a",), started=0, max_runtime_s=3, spot_after_s=5)
    short.up(0)
    assert short.next_deadline == 3
    assert (short.due(6), short.reason) == ("SIGTERM", "max-runtime")


def test_ctrl_c_during_an_interruption_ends_the_job() -> None:
    job = Supervisor(("a",), started=0, max_runtime_s=1000, spot_after_s=5)
    job.up(0)
    job.due(5)
    job.interrupt(6)
    assert job.reason == "interrupted"
    job.interrupt(7)
    assert job.due(7) == "SIGKILL"
