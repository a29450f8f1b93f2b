"""What a step is, and what its parts are: decisions from a few events of the training loop."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Collection

from shoal_entrypoint.marks.averaging import Averaging
from shoal_entrypoint.marks.counting import Counting
from shoal_entrypoint.steps import Parts, Steps

__all__ = ["Watch"]


class Watch:
    """Finds the steps of this process, and measures their parts.

    Evaluation is of no step: a loop that takes batches without gradients, or that has come to its loader's end. What is
    saved after a step and before the next is counted in the next, as if that had begun so much earlier.

    Args:
        marks: where steps are written.
        clock: seconds that never go back.
    """

    def __init__(self, marks: Steps, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.counting = Counting()
        self.averaging = Averaging()
        self._marks = marks
        self._thread = threading.get_ident()  # what others wait for delays no step
        self._nested = False
        self._began: float | None = None  # None: between steps
        self._data = self._saving = self._saved_between = 0.0
        self._incomplete = False
        self._optimizer: int | None = None
        self._other: int | None = None

    def fetches(self, take: Callable[[], Any], evaluates: bool) -> Any:
        """Take a batch from a loader."""
        # A loader may take its items from another one, in this thread or in one that works ahead.
        if self._nested or threading.get_ident() != self._thread:
            return take()
        began = self._clock()
        if evaluates:
            self._leave()
        elif self._began is None and not self._marks.by_hand:
            self._enter(began)
        self._nested = True
        try:
            batch = take()
        except StopIteration:
            self._leave()
            raise
        finally:
            self._nested = False
        if not evaluates:
            self._data += self._clock() - began
        return batch

    def saves(self, save: Callable[[], Any]) -> Any:
        """Save something."""
        if self._nested or threading.get_ident() != self._thread:
            return save()
        self._nested = True
        began = self._clock()
        try:
            return save()
        finally:
            self._nested = False
            seconds = self._clock() - began
            if self._began is None:
                self._saved_between += seconds
            else:
                self._saving += seconds

    def stepped(self, optimizer: object) -> None:
        """An optimizer has made its step."""
        if self._marks.by_hand or not self._ends_step(id(optimizer)):
            self.averaging.look()  # before another backward puts its times over these
            return
        self._thread = threading.get_ident()
        now = self._clock()
        if self._began is None:
            self._enter(now)
        else:
            self._marks.finish(now - self._began + self._saved_between)
            self._began = now

    def _ends_step(self, optimizer: int) -> bool:
        """Of several optimizers the first one counts; another one from its second step in a row on."""
        if self._optimizer is None or optimizer in (self._optimizer, self._other):
            self._optimizer, self._other = optimizer, None
            return True
        self._other = optimizer
        return False

    def incomplete(self) -> None:
        """Leave out how long steps wait for collectives: some are made of which nobody here knows."""
        self._incomplete = True

    def begin(self) -> None:
        """Forget what was before: a step begins."""
        self._data = self._saving = self._saved_between = 0.0
        self.averaging.begin()
        self.counting.begin()

    def parts(self, room: float, own: Collection[str]) -> Parts:
        """See steps.Sources."""
        found: Parts = {}
        saved = self._saving + self._saved_between
        for name, seconds in (("DataSeconds", self._data), ("CheckpointSeconds", saved)):
            if name not in own:
                found[name] = min(room, seconds)
                room -= found[name]
        averaging = None if self._incomplete or _on_gpu() else self.averaging.waited()
        if "CollectiveSeconds" in own:
            return found
        counts = self.counting.since()
        if counts is not None:
            found["CollectiveBytes"] = sum(count.bytes for count in counts.values())
            found["Collectives"] = {name: count.shown() for name, count in counts.items() if count.calls}
        if averaging is not None and (counts is not None or self.averaging.used):
            # Less than there is room for, except where several threads have waited at the same time.
            blocked = averaging + sum(count.blocked for count in (counts or {}).values())
            found["CollectiveSeconds"] = min(room, blocked)
        return found

    def _enter(self, began: float) -> None:
        saved = self._saved_between if self._began is None else 0.0
        self.begin()
        self._began, self._saved_between = began, saved

    def _leave(self) -> None:
        self._saved_between += self._saving
        self._began, self._data, self._saving = None, 0.0, 0.0


def _on_gpu() -> bool:
    """Whether this process uses one: there the device waits for collectives, and the host goes on."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
