"""One order of tasks on all replicas: the first of them decides, the others follow (deterministic server).

Needed where the tasks themselves run collectives with other replicas, as tensor-parallel modules do: two ranks that ran
two micro-batches in different order would wait for one another for ever.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Iterable, NamedTuple, Tuple

from .link import Link
from .tasks import Label, Task

Turn = Tuple[Label, int]  # a task, and how often it has been resumed


class Order(NamedTuple):
    """The leader gave its baton to this task."""

    step: int
    turn: Turn


def turn_of(task: Task) -> Turn:
    """Return what names this run of the task on all replicas."""
    return task.label, task.resumptions


class Leader:
    """Tells the followers each task that runs."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._links = list(links)

    def ran(self, step: int, task: Task) -> None:
        """The task has just been given the baton."""
        for link in self._links:
            with contextlib.suppress(OSError):  # a follower that is gone is noticed elsewhere
                link.send(Order(step, turn_of(task)), [])


class Follower:
    """The turns that the leader has told, by step."""

    def __init__(self) -> None:
        self._turns: dict[int, list[Turn]] = {}
        self._lock = threading.Lock()

    def told(self, order: Order) -> None:
        """Take the leader's next turn."""
        with self._lock:
            self._turns.setdefault(order.step, []).append(order.turn)

    def choose(self, step: int, ready: Iterable[Task]) -> Task | None:
        """Return the ready task whose turn it is; None if it is not ready, or the leader has not said yet."""
        with self._lock:
            turns = self._turns.get(step)
            if not turns:
                return None
            for task in ready:
                if turn_of(task) == turns[0]:
                    turns.pop(0)
                    return task
            return None

    def forget(self, step: int) -> None:
        """Drop what is left of a step that is over."""
        with self._lock:
            for old in [number for number in self._turns if number <= step]:
                del self._turns[old]
