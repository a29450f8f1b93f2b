"""What a user sees while several images are made: a live table on a terminal, else lines with their names."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text


@dataclass
class _Line:
    """One image's line of the table."""

    stage: str = "waiting"
    doing: str = ""
    began: float | None = None
    seconds: float | None = None  # how long it took, once it is done


@dataclass
class Board:
    """A line an image, in the order they were named. `reporter` gives the one that speaks for an image."""

    console: Console
    labels: Sequence[str]
    _lines: dict[str, _Line] = field(init=False)
    _live: Live | None = field(init=False, default=None)
    _start: float = field(init=False, default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._lines = {label: _Line() for label in self.labels}

    def __enter__(self) -> "Board":
        if self.console.is_terminal:
            self._live = Live(
                get_renderable=self.table, console=self.console, refresh_per_second=4, transient=True, screen=False
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def reporter(self, label: str) -> "ImageReporter":
        """Return what a build reports to, and start its clock."""
        self._lines[label].began = time.monotonic()
        return ImageReporter(self, label)

    def busy(self, label: str, what: str) -> None:
        """Show what is being done for an image."""
        line = self._lines[label]
        line.stage, _, line.doing = what.partition(": ")

    def say(self, label: str, what: str) -> None:
        """Print a line for an image, above the table where there is one."""
        elapsed = time.monotonic() - self._start
        self.console.print(Text.assemble((f"{elapsed:6.1f} s", "dim"), "  ", (label, "bold"), f"  {what}"))

    def done(self, label: str, what: str) -> None:
        """Print what has been done for an image; a table shows it already."""
        if self._live is None:
            self.say(label, what)

    def end(self, label: str, result: str) -> None:
        """Show how an image ended, and stop its clock."""
        line = self._lines[label]
        line.stage, line.doing = result, ""
        line.seconds = time.monotonic() - (line.began or time.monotonic())

    def table(self) -> Table:
        """Return the table as it is now."""
        now = time.monotonic()
        seconds = Column("seconds", justify="right", no_wrap=True)
        doing = Column("", no_wrap=True, overflow="ellipsis", ratio=1)
        table = Table(
            Column("image", no_wrap=True), Column("stage", no_wrap=True), doing, seconds, box=None, expand=True
        )
        for label, line in self._lines.items():
            took = line.seconds if line.seconds is not None else now - line.began if line.began is not None else None
            table.add_row(label, line.stage, Text(line.doing), "" if took is None else f"{took:.0f}")
        return table


@dataclass(frozen=True)
class ImageReporter:
    """Speaks for one image on a board."""

    board: Board
    label: str

    def busy(self, what: str) -> None:
        """Show what is being done now."""
        self.board.busy(self.label, what)

    def done(self, what: str) -> None:
        """Show what has been done."""
        self.board.done(self.label, what)
