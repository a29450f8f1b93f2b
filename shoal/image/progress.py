"""What a user sees while an image is made: a line for each thing done, and on a terminal what is being done now."""

import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.status import Status
from rich.text import Text


class Reporter(Protocol):
    """Hears what a build does, in words: `stage: what`, or a stage alone."""

    def busy(self, what: str) -> None:
        """Hear what is being done now."""

    def done(self, what: str) -> None:
        """Hear what has been done."""


class Progress:
    """Lines with the seconds since the start, on stderr; a spinner beside them where there is a terminal."""

    def __init__(self, console: Console) -> None:
        self._console, self._start = console, time.monotonic()
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def busy(self, what: str) -> None:
        """Say what is being done now."""
        if self._status is not None:
            self._status.update(Text(what))

    def done(self, what: str) -> None:
        """Say what has been done."""
        elapsed = time.monotonic() - self._start
        self._console.print(Text.assemble((f"{elapsed:6.1f} s", "dim"), f"  {what}"))
