"""Waits for the end of a step; says who waits for whom when nothing moves, and ends a step that is stuck."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ..exceptions import StepTimeoutError
from ..log import logger
from .failures import failure_of
from .step_run import StepRun

if TYPE_CHECKING:
    from .server import Server


# A step in which nothing began or was answered for so long is failed on every rank; 0: never.
TIMEOUT_VARIABLE = "SMP_STEP_TIMEOUT_SECONDS"


class Watchdog:
    """The step function's own thread waits here.

    Args:
        server: whose tasks to list.
        silence_seconds: when nothing has moved for so long, the table of waiting calls is logged, once.
    """

    def __init__(self, server: Server, silence_seconds: float) -> None:
        self._server = server
        self._silence = silence_seconds
        self._timeout = float(os.environ.get(TIMEOUT_VARIABLE, "1800"))

    def wait(self, run: StepRun) -> None:
        """Return when the step is over."""
        told = 0.0
        while not run.over.wait(min(1.0, self._silence)):
            still = time.monotonic() - run.moved
            if still >= self._silence and run.moved != told:
                told = run.moved
                logger.warning("%s", self.table(run, still))
            if self._timeout and still >= self._timeout and run.failure is None:
                error = StepTimeoutError(
                    f"step {run.number} has not moved for {still:.0f} s ({TIMEOUT_VARIABLE}={self._timeout:g}):\n"
                    + self.table(run, still)
                )
                run.fail(failure_of(error, self._server.settings.rank, None), error)

    def table(self, run: StepRun, still: float) -> str:
        """Return what each task of this rank does and waits for, as aligned text."""
        rows = [("micro-batch", "task", "waits for"), *((str(a), b, c) for a, b, c in run.table())]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        head = f"rank {self._server.settings.rank}: step {run.number}: nothing has moved for {still:.0f} s"
        if len(rows) == 1:
            lines = ["  no task here; it waits for the other ranks to end the step"]
        return "\n".join([head, *lines])
