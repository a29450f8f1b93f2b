"""When messages will come, judged by the step before: so that none comes just too late for its turn.

Where all layers take equally long, what a rank should go on with is due at the moment in which the rank is done with
what it does. If the message then comes 0.1 ms late, the rank has just begun something else, and the message waits for
all of that: with four ranks and the default of `active_microbatches` steps took 6 % longer. A static schedule (1F1B)
waits at such a point; a dynamic one has to foresee that waiting is worth while.
"""

from __future__ import annotations

import math
import time
from typing import Tuple, Union

from .tasks import Label, Task

# A message that is due within this time is waited for, and as long beyond that; at most this share of what a
# micro-batch's forward takes here.
_PAUSE_SECONDS, _PAUSE_SHARE = 0.005, 0.1
# How fast that follows what is measured.
_WEIGHT = 0.2

# Equal in every step that does the same: a task and how often it had been resumed, or the number of a request.
_Event = Union[Tuple[Label, int], int]


class Foresight:
    """What a rank knows of the messages to come: of the answers to its own tasks, of the next forward request.

    Times of arrival are those of a moment at which the message had not come, the last before it was seen: the rank may
    have begun something else then, and have looked again only some milliseconds later. Counted from when it was seen,
    a message would never again be found due at the moment at which it was missed.
    """

    def __init__(self) -> None:
        self._answers: dict[Task, tuple[float, _Event]] = {}
        self._request = (0.0, 0)
        self._took: dict[_Event, float] = {}
        self._took_before: dict[_Event, float] = {}
        self._began: float | None = None
        self._forward_seconds = 0.0

    def begin_step(self) -> None:
        """Begin a step: its messages will take as long as those of the last one."""
        self._took_before, self._took = self._took, {}
        self._answers.clear()
        self._request = (0.0, 0)
        self._began = None

    def forward_begins(self) -> None:
        """A new forward task runs."""
        self._began = time.perf_counter()

    def stops(self) -> None:
        """The task that ran has ended, or waits."""
        if self._began is not None:
            took = time.perf_counter() - self._began
            self._forward_seconds += _WEIGHT * (took - self._forward_seconds)
            self._began = None

    def asks(self, task: Task) -> None:
        """The task that runs waits for an answer from now on."""
        self._answers[task] = time.perf_counter(), (task.label, task.resumptions)

    def answered(self, task: Task, came_after: float) -> None:
        """What the task waits for has come, after that moment."""
        found = self._answers.pop(task, None)
        if found is not None:
            self._came(*found, came_after)

    def requested(self, came_after: float) -> None:
        """A forward request has come, after that moment."""
        since, number = self._request
        if number:
            self._came(since, number, came_after)
        self._request = came_after, number + 1

    def answer_pause(self) -> float:
        """Return until when (time.perf_counter) to leave this rank idle, for an answer that is about to come."""
        return self._until(*self._answers.values())

    def request_pause(self) -> float:
        """Return until when to leave this rank idle, for a forward request that is about to come."""
        return self._until(self._request)

    def _came(self, since: float, event: _Event, came_after: float) -> None:
        self._took[event] = max(0.0, came_after - since)

    def _until(self, *awaited: tuple[float, _Event]) -> float:
        now = time.perf_counter()
        pause = min(_PAUSE_SECONDS, _PAUSE_SHARE * self._forward_seconds)
        due = [since + self._took_before.get(event, math.inf) for since, event in awaited]
        return max((max(now, at) + pause for at in due if abs(at - now) < pause), default=0.0)
