"""Older micro-batches come first whenever messages arrive: gradients are added in one order (chains are bit-equal)."""

from __future__ import annotations

import queue
import threading

import torch
from smdistributed.modelparallel.torch.server import messages as say
from smdistributed.modelparallel.torch.server.scheduler import Scheduler
from smdistributed.modelparallel.torch.server.server import Server, Settings
from smdistributed.modelparallel.torch.server.step_run import Answer, StepRun
from smdistributed.modelparallel.torch.server.tasks import Phase, Task, current


def test_an_answer_that_was_early_does_not_overtake_an_older_micro_batch() -> None:
    """A task whose answer came before it waited lets the older one, which is ready too, run first."""
    scheduler = Scheduler("interleaved")
    run = StepRun(1, 2, 2, scheduler, 0)
    order: queue.SimpleQueue[int] = queue.SimpleQueue()
    blocked = threading.Event()

    def older() -> None:
        run.wait("older", here(), "its answer")
        order.put(0)

    def younger() -> None:
        blocked.set()  # the older one waits, for it gave the baton to this one
        run.answer("younger", Answer(None, []))
        run.answer("older", Answer(None, []))
        run.wait("younger", here(), "its answer")
        order.put(1)

    run.launch(older, (0,), Phase.BACKWARD, "the older")
    run.launch(younger, (1,), Phase.BACKWARD, "the younger")
    assert blocked.wait(10)
    assert [order.get(timeout=10), order.get(timeout=10)] == [0, 1]
    scheduler.close()


def here() -> Task:
    task = current()
    assert task is not None
    return task


class SlowServer(Server):
    """Receives one more request while it hands over those that came before its step began."""

    def _deliver(self, run, message, tensors) -> None:  # type: ignore[no-untyped-def]
        self.delivered.append(message.microbatch)
        if message.microbatch == 0:
            self.received(None, say.MicrobatchDone(run.number, 2), [])  # type: ignore[arg-type]

    delivered: list[int]


def test_a_request_that_comes_while_a_step_opens_waits_for_its_turn() -> None:
    """Requests of a step that this rank has not entered are parked; none that comes later is served before them."""
    settings = Settings(1, 2, 1, "interleaved", 4, torch.device("cpu"), 60.0)
    server = SlowServer(settings, [0, 1])
    server.delivered = []
    for microbatch in (0, 1):
        server.received(None, say.MicrobatchDone(1, microbatch), [])  # type: ignore[arg-type]
    server._open(4)
    assert server.delivered == [0, 1, 2]
    server.received(None, say.MicrobatchDone(1, 3), [])  # type: ignore[arg-type]
    assert server.delivered == [0, 1, 2, 3]


def test_a_request_of_the_next_step_waits_for_that_step() -> None:
    """A rank whose step failed at once may ask for the next one before this rank has opened the one that failed."""
    settings = Settings(1, 2, 1, "interleaved", 4, torch.device("cpu"), 60.0)
    server = SlowServer(settings, [0, 1])
    server.delivered = []
    for step, microbatch in ((2, 20), (1, 10), (3, 30)):
        server.received(None, say.MicrobatchDone(step, microbatch), [])  # type: ignore[arg-type]
    for expected in ([10], [10, 20], [10, 20, 30]):
        server._open(4)
        assert server.delivered == expected
        server._close()
