"""One step on one rank: its tasks, the calls that wait, what is saved for backward, and how it ends.

Everything a step leaves behind is in its StepRun; when the step is over, dropping it frees it all.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, NamedTuple

import torch

from .failures import Failure, error_of, failure_of
from .scheduler import Scheduler
from .tasks import Label, Phase, Task, current


class Saved(NamedTuple):
    """A served forward that may be asked for its backward: inputs and outputs as they travelled."""

    leaves: list[torch.Tensor]
    outputs: list[torch.Tensor]
    previous: int | None  # the pp rank of the segment before, None for the first


class Answer(NamedTuple):
    """What a waiting call is given: a message with tensors (and whether they need gradients), or a failure."""

    message: Any
    tensors: list[tuple[torch.Tensor, bool]]


class StepRun:
    """The state of one step.

    Args:
        number: counts the steps of this process, equal on all ranks.
        microbatches: how many bodies there are.
        active: how many of them may be under way at once.
        rank: the global rank, for failures.
    """

    def __init__(self, number: int, microbatches: int, active: int, scheduler: Scheduler, rank: int) -> None:
        self.number = number
        self.microbatches = microbatches
        self.saved: dict[tuple[Label, int], Saved] = {}
        self.failure: Failure | None = None
        self.own_error: BaseException | None = None
        self.over = threading.Event()
        self.moved = time.monotonic()
        self.bodies_left = microbatches
        self.ended = False
        self._active = active
        self._scheduler = scheduler
        self._rank = rank
        self._lock = threading.Lock()
        self._waiting: dict[Any, Task] = {}
        self._early: dict[Any, Answer] = {}
        self._live: set[Task] = set()
        self._started = 0
        self._in_forward = 0
        self._held: list[Task] = []
        self._body: Callable[[int], None] = lambda _: None
        self._on_body_end: Callable[[int], None] = lambda _: None
        self._phase = Phase.FORWARD

    # -- bodies

    def start(self, body: Callable[[int], None], phase: Phase, on_body_end: Callable[[int], None]) -> None:
        """Start as many bodies as may be active; each that ends starts the next."""
        self._body, self._phase, self._on_body_end = body, phase, on_body_end
        for _ in range(min(self._active, self.microbatches)):
            self._start_next()

    def _start_next(self) -> None:
        with self._lock:
            if self.failure is not None or self._started == self.microbatches:
                return
            index = self._started
            self._started += 1
            self._in_forward += 1
        self.launch(
            lambda: self._body(index), (index,), self._phase, "the step function", lambda: self._body_ended(index)
        )

    def _body_ended(self, index: int) -> None:
        with self._lock:
            self.bodies_left -= 1
        self.left_forward()
        self._on_body_end(index)
        self._start_next()

    def hold_backward(self, task: Task) -> None:
        """Simple pipeline: wait until no forward can be run before this backward."""
        with self._lock:
            if self.failure is not None:
                raise error_of(self.failure)
            self._held.append(task)
        self.left_forward()
        task.waiting = "the forward passes of the other micro-batches (pipeline: simple)"
        self._scheduler.block(task)
        task.waiting = None
        if self.failure is not None:
            raise error_of(self.failure)

    def left_forward(self) -> None:
        """A body's forward is over: the held backwards may run once it was the last that can."""
        current_task = current()
        with self._lock:
            if current_task is not None and not current_task.forward_over:
                current_task.forward_over = True  # counted once, at its first backward or at its end
                self._in_forward -= 1
            if self._in_forward > 0:
                return
            held, self._held = self._held, []
        for task in held:
            self._scheduler.wake(task)

    # -- tasks

    def launch(
        self,
        work: Callable[[], None],
        label: Label,
        phase: Phase,
        doing: str,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `work` as a task; an exception that leaves it ends the step on every rank."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # SystemExit of a user's hook included: no rank may hang
                self.fail(failure_of(error, self._rank, task), error)
            try:
                at_end()
            except Exception as error:  # a peer went just now
                self.fail(failure_of(error, self._rank, task), error)
            self._leave(task)

        task = Task(run, label, phase, doing)
        with self._lock:
            if self.failure is not None:
                return
            self._live.add(task)
            self.moved = time.monotonic()
        self._scheduler.add(task)

    def _leave(self, task: Task) -> None:
        with self._lock:
            self._live.discard(task)
        self.settle()

    def settle(self) -> None:
        """See whether the step is over."""
        with self._lock:
            if not self._live and (self.failure is not None or self.ended) and not self.over.is_set():
                self._scheduler.end_step()
                self.over.set()

    # -- waiting for other ranks

    def wait(self, key: Any, task: Task, what: str) -> Answer:
        """Wait for the answer `key`; other tasks run meanwhile.

        Raises:
            SMPError: the step failed, here or elsewhere.
        """
        task.waiting = what
        with self._lock:
            early = self._early.pop(key, None)
            failed = self.failure is not None
            if early is not None or failed:
                self._waiting.pop(key, None)
            else:
                self._waiting[key] = task
        if early is not None:
            # Older micro-batches that are ready come first, and on another replica the answer may come late: the order
            # of tasks, in which gradients are added, must not depend on when an answer comes.
            self._scheduler.wake(task)
        if early is not None or not failed:
            self._scheduler.block(task)
        task.waiting = None
        if self.failure is not None:
            raise error_of(self.failure)
        answer = early
        if answer is None:
            answer, task.reply = task.reply, None
        assert answer is not None
        if isinstance(answer.message, Failure):
            raise error_of(answer.message)
        return answer

    def answer(self, key: Any, answer: Answer) -> None:
        """Give the answer `key` to the task that waits for it, or keep it until one does."""
        with self._lock:
            self.moved = time.monotonic()
            task = self._waiting.pop(key, None)
            if task is None:
                self._early[key] = answer
                return
            task.reply = answer
        self._scheduler.wake(task)

    # -- ends

    def fail(self, failure: Failure, own: BaseException | None = None) -> None:
        """End the step with `failure`, unless another came first: every waiting task raises it."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure, self.own_error = failure, own
            waiting, self._waiting = list(self._waiting.values()), {}
            held, self._held = self._held, []
        self._scheduler.release()
        for task in dict.fromkeys([*waiting, *held]):
            self._scheduler.wake(task)
        self.on_failure(failure)
        self.settle()

    on_failure: Callable[[Failure], None] = staticmethod(lambda _: None)

    def forget(self, microbatch: int) -> None:
        """Free what was saved for the backward of a micro-batch."""
        with self._lock:
            for key in [key for key in self.saved if key[0][0] == microbatch]:
                del self.saved[key]

    def table(self) -> list[tuple[int, str, str]]:
        """Return (micro-batch, what it does, what it waits for) of each live task."""
        with self._lock:
            return sorted((task.label[0], task.doing, task.waiting or "runs") for task in self._live)
