"""The two streams a user sees: data on stdout, progress and errors on stderr. Rich drops colour when not a terminal."""

import os
import sys
from typing import IO, TextIO

from rich.console import Console as RichConsole

_PIPE_WIDTH = 200  # a table that goes to a file or a pipe is not folded at a terminal's 80 columns


def discard(stream: IO[str]) -> None:
    """Send what is still to come nowhere: Python would try to flush it at exit, and turn the exit code into 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Console(RichConsole):
    """Rich's console, but a reader that goes away (`| head`) ends the printing only, not what the command is doing."""

    def on_broken_pipe(self) -> None:
        """Print nothing any more."""
        self.quiet = True
        discard(self.file)


def _console(stream: TextIO | None, *, stderr: bool) -> Console:
    width = None if stream is not None and stream.isatty() else _PIPE_WIDTH
    return Console(highlight=False, soft_wrap=True, stderr=stderr, width=width)


out = _console(sys.stdout, stderr=False)
err = _console(sys.stderr, stderr=True)
