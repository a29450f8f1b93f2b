"""The two streams a user sees: data on stdout, progress and errors on stderr. Rich drops colour when not a terminal."""

import sys
from typing import TextIO

from rich.console import Console

_PIPE_WIDTH = 200  # a table that goes to a file or a pipe is not folded at a terminal's 80 columns


def _console(stream: TextIO, *, stderr: bool) -> Console:
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(highlight=False, soft_wrap=True, stderr=stderr, width=width)


out = _console(sys.stdout, stderr=False)
err = _console(sys.stderr, stderr=True)
