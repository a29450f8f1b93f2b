"""Who runs: one task at a time, and which is next is the pipeline's schedule.

A task holds the rank's baton until it ends or waits for another rank; then the ready task that comes first takes it:
of the phase whose turn it is (turns.py) a resumed task before a new one, then the older micro-batch. Bodies that only
receive what the model returned come last.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import Tuple

import torch

from .. import marks
from .foresight import Foresight
from .inlet import Inlet
from .ordering import Follower, Leader
from .tasks import Phase, Task, Waiter, set_current
from .turns import Turns

_Entry = Tuple[int, int, int, Task]  # 0 for a resumed task, its micro-batch, a number: the smallest comes first


class _Worker:
    """A thread that runs one task after another."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler = scheduler
        self.waiter = Waiter()
        self.task: Task | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        # Backward runs in the thread that asks for it, on every device: a backward that waits for another rank must not
        # hold the one thread that autograd has for a device.
        torch.autograd.set_multithreading_enabled(False)
        while True:
            self._scheduler._inlet.wait(self.waiter)
            task, self.task = self.task, None
            if task is None:
                return
            set_current(task)
            work = task.work
            task.work = _nothing
            work()
            set_current(None)
            del work, task
            self._scheduler._ended(self)


def _nothing() -> None:
    pass


class Scheduler:
    """The rank's baton and the tasks that wait for it.

    Args:
        pipeline: "interleaved" or "simple".
        inlet: what threads that wait read.
        drives: whether this is the first rank of its pipeline.
        foresees: whether to pause for a message that is about to come, rather than begin something else.
    """

    def __init__(self, pipeline: str, inlet: Inlet | None = None, drives: bool = False, foresees: bool = False) -> None:
        self._inlet = inlet or Inlet()
        self._turns = Turns(pipeline)
        self._lock = threading.Lock()
        self._ready: dict[Phase, list[_Entry]] = {phase: [] for phase in Phase}
        self._number = itertools.count()
        self._running: Task | None = None
        self._idle: list[_Worker] = []
        self._workers = 0
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._step = 0
        self._free = False
        self._over = False
        self._drives = drives
        self._foresight = Foresight() if foresees else None
        self._pauses: Waiter | None = None
        self._counts = False
        self._waits_since: float | None = None

    def follow(self, follower: Follower) -> None:
        """Run tasks in the order that another replica tells."""
        self._follower = follower
        self._foresight = None  # it is the leader that decides

    def lead(self, leader: Leader) -> None:
        """Tell the other replicas which tasks run."""
        self._leader = leader

    def begin_step(self, number: int) -> None:
        """Begin a step: its turns are told with its number."""
        with self._lock:
            self._step, self._free, self._over = number, False, False
            if self._foresight is not None:
                self._foresight.begin_step()

    def end_step(self) -> None:
        """Note that the step is over: the thread that called the step function goes on."""
        self._over = self._inlet.busy = True

    def release(self) -> None:
        """Let every task run, in any order: the step has failed."""
        with self._lock:
            self._free = True
            if self._running is None:
                self._dispatch()

    def count_waits(self, on: bool) -> None:
        """Count, or no longer, the time in which no task can run: for the marks of this rank's steps."""
        with self._lock:
            self._counts = on and marks.counters is not None
            self._waits(self._running is None and on)

    def _waits(self, now: bool) -> None:
        """Whether the rank has nothing to run, from now on; the lock is held."""
        if now and self._counts and self._waits_since is None:
            self._waits_since = time.monotonic()
        elif not now and self._waits_since is not None:
            assert marks.counters is not None
            marks.counters.add("pipeline", seconds=time.monotonic() - self._waits_since)
            self._waits_since = None

    def turn_told(self) -> None:
        """See whether the task may run that the leader has just named."""
        with self._lock:
            if self._running is None:
                self._dispatch()

    def add(self, task: Task) -> None:
        """Make a new task ready."""
        if self._foresight is not None and task.phase is Phase.FORWARD:
            self._foresight.requested(self._inlet.came_after)
        self._push(task, resumed=False)

    def wake(self, task: Task) -> None:
        """Make a task ready that waits in `block`, or is about to."""
        task.resumptions += 1
        if self._foresight is not None:
            self._foresight.answered(task, self._inlet.came_after)
        self._push(task, resumed=True)

    def block(self, task: Task) -> None:
        """Give the baton away and wait until `wake`; called by the task that runs."""
        if self._foresight is not None:
            self._foresight.asks(task)
        self._leave_baton()
        self._inlet.wait(task.waiter)

    def close(self) -> None:
        """End the idle threads."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            self._inlet.wake(worker.waiter)

    def _push(self, task: Task, resumed: bool) -> None:
        with self._lock:
            entry = (0 if resumed else 1, task.label[0], next(self._number), task)
            heapq.heappush(self._ready[task.phase], entry)
            if self._running is None:
                self._dispatch()
            elif self._pauses is not None:
                waiter, self._pauses = self._pauses, None
                self._inlet.wake(waiter)

    def _dispatch(self) -> None:
        """Hand the baton to the first ready task; the lock is held and nobody runs."""
        task = self._take()
        self._inlet.busy = task is not None or self._over
        self._waits(task is None)
        if task is None:
            return
        self._running = task
        if self._leader is not None:
            self._leader.ran(self._step, task)
        if task.work is _nothing:
            self._inlet.wake(task.waiter)
            return
        if self._foresight is not None and task.phase is Phase.FORWARD:
            self._foresight.forward_begins()
        worker = self._idle_worker()
        worker.task = task
        self._inlet.wake(worker.waiter)

    def _pause(self, foresight: Foresight) -> None:
        """Let a message that is about to come have its turn; the calling thread has the baton."""
        until = 0.0
        while True:
            with self._lock:
                self._pauses = None
                if not (self._begins_next() if self._drives else self._has_one_in_hand()):
                    return
                until = until or (foresight.answer_pause() if self._drives else foresight.request_pause())
                if until <= time.perf_counter():
                    return
                self._pauses = waiter = Waiter()
            self._inlet.pause(waiter, until)

    def _begins_next(self) -> bool:
        """First rank: whether it would begin a micro-batch next, before which an answer would go."""
        forwards = self._ready[Phase.FORWARD]
        return bool(forwards) and forwards[0][0] == 1 and not self._ready[Phase.BACKWARD]

    def _has_one_in_hand(self) -> bool:
        """Other ranks: whether the last backward that is ready is next, which would let a new forward pass."""
        backwards = len(self._ready[Phase.BACKWARD])
        return not self._ready[Phase.FORWARD] and self._turns.lets_pass(backwards)

    def _idle_worker(self) -> _Worker:
        """Take an idle worker: the one that reads here, else the one that was busy last."""
        if not self._idle:
            self._workers += 1
            return _Worker(self, f"smp-task-{self._workers}")
        reader = self._inlet.reader
        for index, worker in enumerate(self._idle):
            if worker.waiter is reader:
                return self._idle.pop(index)
        return self._idle.pop()

    def _take(self) -> Task | None:
        if self._follower is None or self._free:
            return self._first()
        task = self._follower.choose(self._step, (entry[-1] for heap in self._ready.values() for entry in heap))
        if task is not None:
            heap = self._ready[task.phase]
            heap[:] = [entry for entry in heap if entry[-1] is not task]
            heapq.heapify(heap)
        return task

    def _first(self) -> Task | None:
        """Take the ready task whose turn it is."""
        forwards, backwards = self._ready[Phase.FORWARD], self._ready[Phase.BACKWARD]
        phase = Phase.BODY
        if forwards or backwards:
            resumes = bool(forwards) and forwards[0][0] == 0
            backward = self._turns.backward_next(len(forwards), len(backwards), resumes)
            phase = Phase.BACKWARD if backward else Phase.FORWARD
        heap = self._ready[phase]
        return heapq.heappop(heap)[-1] if heap else None

    def _ended(self, worker: _Worker) -> None:
        self._leave_baton(worker)

    def _leave_baton(self, idle: _Worker | None = None) -> None:
        """Give the baton to who comes first, of all that has come; the calling thread has it, or has just ended."""
        if self._foresight is not None:
            self._foresight.stops()
        self._inlet.look()
        if self._foresight is not None:
            self._pause(self._foresight)
        with self._lock:
            if idle is not None:
                self._idle.append(idle)
            self._running = None
            self._dispatch()
