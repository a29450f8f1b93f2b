"""The lines `shoal run` says about itself, on stderr: stages with the seconds since the start, and notes."""

import time

from rich.console import Console
from rich.text import Text

_STYLES = {
    "Completed": "bold green",
    "Failed": "bold red",
    "Stopped": "bold yellow",
    "MaxRuntimeExceeded": "bold yellow",
}


class Progress:
    """Says what happens, when it happens."""

    def __init__(self, console: Console) -> None:
        self.console, self._started = console, time.monotonic()

    def stage(self, name: str, message: str = "") -> None:
        """Say that the job enters a stage."""
        elapsed = time.monotonic() - self._started
        # Text, not markup: a failure's text is data.
        self.console.print(
            Text.assemble(f"{elapsed:6.1f} s  ", (f"{name:<12}", _STYLES.get(name, "bold")), f" {message}".rstrip())
        )

    def note(self, message: str) -> None:
        """Say something the user should know."""
        self.stage("note", message)
