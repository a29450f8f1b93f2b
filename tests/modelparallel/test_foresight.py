"""Rank 0 pauses for an answer that the step before says is due (server/foresight.py), and for no other."""

from __future__ import annotations

import pytest
from smdistributed.modelparallel.torch.server import foresight
from smdistributed.modelparallel.torch.server.foresight import Foresight
from smdistributed.modelparallel.torch.server.tasks import Phase, Task


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
    sight.begins()
    clock.now += forward
    sight.waits(task)
    clock.now += wait
    sight.answered(task)
    return task


@pytest.mark.parametrize(
    ("late", "pauses"), [(-0.010, False), (-0.0009, True), (0.0, True), (0.0009, True), (0.010, False)]
)
def test_only_what_is_due_is_waited_for(clock: Clock, late: float, pauses: bool) -> None:
    """Within 5 % of a forward of 20 ms (1 ms) around the moment at which the last step had the answer."""
    sight = Foresight()
    for _ in range(30):
        step(sight, clock, 0.020, 0.060)
    sight.begin_step()
    sight.begins()
    clock.now += 0.020
    sight.waits(micro_batch(0))
    clock.now += 0.060 + late
    until = sight.pause_until()
    assert (until > clock.now) == pauses
    assert until <= clock.now + 0.0011


def test_nothing_is_known_of_the_first_step_and_of_other_waits(clock: Clock) -> None:
    """Without an equal wait in the step before there is no pause; nor once the answer has come."""
    sight = Foresight()
    sight.begin_step()
    sight.begins()
    clock.now += 0.020
    task = micro_batch(0)
    sight.waits(task)
    assert sight.pause_until() == 0.0
    sight.answered(task)
    step(sight, clock, 0.020, 0.060)
    sight.begin_step()
    other = micro_batch(3)
    sight.waits(other)
    clock.now += 0.060
    assert sight.pause_until() == 0.0
    again = micro_batch(0)
    sight.waits(again)
    sight.answered(again)
    clock.now += 0.060
    assert sight.pause_until() == 0.0


def test_a_pause_is_short_however_long_the_layers(clock: Clock) -> None:
    """2 ms at most: what is foreseen may not come."""
    sight = Foresight()
    for _ in range(30):
        step(sight, clock, 5.0, 15.0)
    sight.begin_step()
    sight.waits(micro_batch(0))
    clock.now += 15.0
    assert sight.pause_until() - clock.now == pytest.approx(0.002)
