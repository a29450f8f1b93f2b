"""A task: one piece of work of one micro-batch, in a thread of its own, that may wait for another rank.

Tasks are the bodies of the step function (one a micro-batch) and the requests of other ranks. At any time one task of a
rank runs; see scheduler.py.
"""

from __future__ import annotations

import enum
import threading
from typing import Any, Callable, Tuple

Label = Tuple[int, ...]  # micro-batch, then the number of each nested call: equal on all replicas of a model


class Phase(enum.Enum):
    """What a task is doing; the pipeline schedule orders tasks by it."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BODY = "body"  # the step's body on a rank that does not drive: short work between two messages


class Waiter:
    """Where one thread waits until another says that it may go on."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told = threading.Lock()  # the cheapest hand-over Python has
        self.told.acquire()


class Task:
    """Work that holds the rank's baton while it runs.

    Attributes:
        label: names the task; the first number is its micro-batch.
        phase: forward or backward; a task changes it when its backward begins.
        doing: for the table of waiting calls: what it runs, and where it waits.
        reply: what the other rank answered, when it has.
        passes: how often the step's body has called the model.
        inside: whether it is inside the model: only there may it call a module of another rank.
        forward_over: whether a body has come to its backward, or to its end.
        tracing: whether it is the traced run before the model is partitioned.
        resumptions: how often it has been resumed.
        waiter: where its thread waits.
    """

    __slots__ = (
        "calls",
        "doing",
        "forward_over",
        "inside",
        "label",
        "passes",
        "phase",
        "reply",
        "resumptions",
        "tracing",
        "waiter",
        "waiting",
        "work",
    )

    def __init__(self, work: Callable[[], None], label: Label, phase: Phase, doing: str) -> None:
        self.work = work
        self.label = label
        self.phase = phase
        self.doing = doing
        self.waiting: str | None = None
        self.reply: Any = None
        self.forward_over = False
        self.inside = False
        self.tracing = False
        self.calls = 0
        self.passes = 0
        self.resumptions = 0
        self.waiter = Waiter()

    def next_label(self) -> Label:
        """Return the label of the next call that this task makes of another rank."""
        self.calls += 1
        return (*self.label, self.calls)


class _Current(threading.local):
    task: Task | None = None


_current = _Current()


def current() -> Task | None:
    """Return the task that the calling thread runs, None outside a step."""
    return _current.task


def set_current(task: Task | None) -> None:
    """Say which task the calling thread runs."""
    _current.task = task
