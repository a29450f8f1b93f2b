"""The two streams a user sees: data on stdout, progress and errors on stderr. Rich drops colour when not a terminal."""

import os
import sys
from typing import IO, Any, TextIO

from rich.console import Console as RichConsole

from shoal.errors import ShoalError

_PIPE_WIDTH = 200  # a table that goes to a file or a pipe is not folded at a terminal's 80 columns


def discard(stream: IO[str]) -> None:
    """Send what is still to come nowhere: Python would try to flush it at exit, and turn the exit code into 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Console(RichConsole):
    """Rich's console, but what stops its printing, a reader that goes away (`| head`) or a full disk, is no bug.

    What a command was asked to print must arrive; what it says of itself need not.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as Rich does.

        Raises:
            ShoalError: stdout cannot be written, though somebody wants it.
        """
        try:
            super().print(*objects, **options)
        except OSError as error:
            self.quiet = True
            discard(self.file)
            if not self.stderr:
                raise ShoalError(f"stdout: cannot be written: {error.strerror}", exit_code=3) from error

    def on_broken_pipe(self) -> None:
        """Print nothing any more."""
        self.quiet = True
        discard(self.file)


def _console(stream: TextIO | None, *, stderr: bool) -> Console:
    width = None if stream is not None and stream.isatty() else _PIPE_WIDTH
    return Console(highlight=False, soft_wrap=True, stderr=stderr, width=width)


out = _console(sys.stdout, stderr=False)
err = _console(sys.stderr, stderr=True)
