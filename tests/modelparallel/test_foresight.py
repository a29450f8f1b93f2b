"""A rank pauses for a message that the step before says is due, and for no other (server/foresight.py)."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from smdistributed.modelparallel.torch.server import foresight
from smdistributed.modelparallel.torch.server.foresight import Foresight
from smdistributed.modelparallel.torch.server.scheduler import Scheduler
from smdistributed.modelparallel.torch.server.step_run import Answer, StepRun
from smdistributed.modelparallel.torch.server.tasks import Phase, Task, current


class Clock:
    """Seconds, as the test says."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(foresight, "time", clock)
    return clock


def micro_batch(index: int) -> Task:
    return Task(lambda: None, (index,), Phase.FORWARD, "the step function")


def step(sight: Foresight, clock: Clock, forward: float, wait: float) -> Task:
    """A step of one micro-batch: its forward here, its wait for another rank; return the task."""
    sight.begin_step()
    task = micro_batch(0)
    sight.forward_begins()
    clock.now += forward
    sight.stops()
    sight.asks(task)
    clock.now += wait
    sight.answered(task, clock.now)
    return task


@pytest.mark.parametrize(
    ("late", "pauses"), [(-0.010, False), (-0.0019, True), (0.0, True), (0.0019, True), (0.010, False)]
)
def test_only_what_is_due_is_waited_for(clock: Clock, late: float, pauses: bool) -> None:
    """Within 10 % of a forward of 20 ms around the moment at which the last step had the answer, and as long beyond."""
    sight = Foresight()
    for _ in range(30):
        step(sight, clock, 0.020, 0.060)
    sight.begin_step()
    sight.forward_begins()
    clock.now += 0.020
    sight.asks(micro_batch(0))
    clock.now += 0.060 + late
    until = sight.answer_pause()
    assert (until > clock.now) == pauses
    assert until <= clock.now + max(0.0, -late) + 0.0021


def test_nothing_is_known_of_the_first_step_and_of_other_waits(clock: Clock) -> None:
    """Without an equal wait in the step before there is no pause; nor once the answer has come."""
    sight = Foresight()
    sight.begin_step()
    sight.forward_begins()
    clock.now += 0.020
    task = micro_batch(0)
    sight.asks(task)
    assert sight.answer_pause() == 0.0
    sight.answered(task, clock.now)
    step(sight, clock, 0.020, 0.060)
    sight.begin_step()
    other = micro_batch(3)
    sight.asks(other)
    clock.now += 0.060
    assert sight.answer_pause() == 0.0
    again = micro_batch(0)
    sight.asks(again)
    sight.answered(again, clock.now)
    clock.now += 0.060
    assert sight.answer_pause() == 0.0


def test_a_pause_is_short_however_long_the_layers(clock: Clock) -> None:
    """5 ms at most: what is foreseen may not come."""
    sight = Foresight()
    for _ in range(30):
        step(sight, clock, 5.0, 15.0)
    sight.begin_step()
    sight.asks(micro_batch(0))
    clock.now += 15.0
    assert sight.answer_pause() - clock.now == pytest.approx(0.005)


def test_an_answer_that_was_seen_late_is_waited_for_where_it_was_missed(clock: Clock) -> None:
    """The rank began another micro-batch, and looked 3 ms later: the answer may have come just after it began."""
    sight = Foresight()
    for _ in range(30):
        step(sight, clock, 0.020, 0.060)
    sight.begin_step()
    task = micro_batch(0)
    sight.asks(task)
    missed = clock.now = clock.now + 0.0613
    clock.now += 0.003
    sight.answered(task, missed)
    sight.begin_step()
    sight.asks(micro_batch(0))
    clock.now += 0.0613
    assert sight.answer_pause() > clock.now


def test_a_request_is_due_when_it_came_after_the_one_before(clock: Clock) -> None:
    """Requests are told by their number in the step; of more than the last step had nothing is known."""
    sight = Foresight()
    for _ in range(30):
        sight.begin_step()
        for gap in (0.3, 0.021, 0.084):
            clock.now += gap
            sight.requested(clock.now)
            sight.forward_begins()
            clock.now += 0.020
            sight.stops()
            clock.now -= 0.020
    sight.begin_step()
    clock.now += 0.5  # the first may come at any time: there is nothing to count from
    assert sight.request_pause() == 0.0
    for gap in (0.3, 0.021, 0.084):
        clock.now += gap
        assert gap == 0.3 or sight.request_pause() > clock.now
        sight.requested(clock.now)
    clock.now += 0.021
    assert sight.request_pause() == 0.0


def run_to_the_end(scheduler: Scheduler, run: StepRun, count: int, done: queue.SimpleQueue[str]) -> list[str]:
    """Return in which order the tasks ended."""
    found = [done.get(timeout=20) for _ in range(count)]
    scheduler.close()
    assert run.failure is None
    return found


class Due(Foresight):
    """Says that a message is due."""

    def __init__(self, seconds: float = 1.0) -> None:
        super().__init__()
        self._seconds = seconds

    def answer_pause(self) -> float:
        return time.perf_counter() + self._seconds

    request_pause = answer_pause


@pytest.mark.parametrize("due", [True, False])
def test_the_first_rank_lets_an_answer_go_before_a_new_micro_batch(due: bool) -> None:
    """The first micro-batch's answer comes 50 ms after the second one waits: the third begins before it, or behind."""
    scheduler = Scheduler("interleaved", drives=True, foresees=True)
    scheduler._foresight = Due() if due else Foresight()
    run, done = StepRun(1, 3, 3, scheduler, 0), queue.SimpleQueue[str]()

    def first() -> None:
        run.wait("first", here(), "its answer")
        done.put("first")

    def second() -> None:
        threading.Timer(0.05, lambda: run.answer("first", Answer(None, []))).start()

    run.launch(first, (0,), Phase.FORWARD, "the first")
    run.launch(second, (1,), Phase.FORWARD, "the second")
    run.launch(lambda: done.put("third"), (2,), Phase.FORWARD, "the third")
    assert run_to_the_end(scheduler, run, 2, done) == (["first", "third"] if due else ["third", "first"])


@pytest.mark.parametrize("due", [True, False])
def test_another_rank_lets_a_request_go_before_its_last_backward(due: bool) -> None:
    """A forward request comes 50 ms after a forward has ended and left one backward in hand."""
    scheduler = Scheduler("interleaved", foresees=True)
    scheduler._foresight = Due() if due else Foresight()
    run, done = StepRun(1, 3, 3, scheduler, 0), queue.SimpleQueue[str]()

    def request() -> None:
        run.launch(lambda: done.put("request"), (1,), Phase.FORWARD, "a request")

    def running() -> None:
        run.launch(lambda: done.put("backward"), (0,), Phase.BACKWARD, "a backward")
        threading.Timer(0.05, request).start()

    run.launch(running, (0,), Phase.FORWARD, "a forward")
    assert run_to_the_end(scheduler, run, 2, done) == (["request", "backward"] if due else ["backward", "request"])


@pytest.mark.parametrize("drives", [True, False])
def test_a_rank_goes_on_when_nothing_comes(drives: bool) -> None:
    """What was due does not come: the micro-batch begins, or the backward, all the same."""
    scheduler = Scheduler("interleaved", drives=drives, foresees=True)
    scheduler._foresight = Due(0.01)
    run, done = StepRun(1, 2, 2, scheduler, 0), queue.SimpleQueue[str]()
    phase = Phase.FORWARD if drives else Phase.BACKWARD

    def running() -> None:
        run.launch(lambda: done.put("the next"), (1,), phase, "what is next")

    run.launch(running, (0,), Phase.FORWARD, "a forward")
    assert run_to_the_end(scheduler, run, 1, done) == ["the next"]


def here() -> Task:
    task = current()
    assert task is not None
    return task
