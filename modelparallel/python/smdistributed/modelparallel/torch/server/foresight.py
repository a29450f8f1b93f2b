"""When waiting tasks will be answered, judged by the step before: so that no answer comes just too late for its turn.

Where all layers take equally long, the answer that a rank should go on with is due at the moment in which the rank is
done with what it does. If a message then comes 0.1 ms late, the rank has just begun another micro-batch, and the
answer waits for all of that: with four ranks and the default of `active_microbatches` steps took 6 % longer. A static
schedule (1F1B) waits at such a point; a dynamic one has to foresee that waiting is worth while.
"""

from __future__ import annotations

import math
import time
from typing import Tuple

from .tasks import Label, Task

# A pause is at most this long, and at most this share of what a micro-batch takes here before it waits.
_PAUSE_SECONDS, _PAUSE_SHARE = 0.002, 0.05
# How fast that follows what is measured.
_WEIGHT = 0.2

_Wait = Tuple[Label, int]  # of a task, and how often it had been resumed: equal in every step that does the same


class Foresight:
    """What the first rank of a pipeline knows of its tasks that wait. The scheduler tells it what they do."""

    def __init__(self) -> None:
        self._since: dict[Task, tuple[float, _Wait]] = {}
        self._took: dict[_Wait, float] = {}
        self._took_before: dict[_Wait, float] = {}
        self._began: float | None = None
        self._forward_seconds = 0.0

    def begin_step(self) -> None:
        """Begin a step: its waits will take what those of the last one took."""
        self._took_before, self._took = self._took, {}
        self._since.clear()
        self._began = None

    def begins(self) -> None:
        """A new task runs."""
        self._began = time.perf_counter()

    def waits(self, task: Task) -> None:
        """The task that ran waits for another rank."""
        now = time.perf_counter()
        self._since[task] = now, (task.label, task.resumptions)
        if self._began is not None:
            self._forward_seconds += _WEIGHT * (now - self._began - self._forward_seconds)
            self._began = None

    def answered(self, task: Task) -> None:
        """What the task waits for has come."""
        found = self._since.pop(task, None)
        if found is not None:
            since, wait = found
            self._took[wait] = time.perf_counter() - since

    def pause_until(self) -> float:
        """Return until when (time.perf_counter) to leave this rank idle rather than begin another micro-batch."""
        now = time.perf_counter()
        pause = min(_PAUSE_SECONDS, _PAUSE_SHARE * self._forward_seconds)
        for since, wait in list(self._since.values()):
            if abs(since + self._took_before.get(wait, math.inf) - now) < pause:
                return now + pause
        return 0.0
