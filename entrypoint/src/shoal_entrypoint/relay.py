"""The way of a command's output: from its pipes, through what may change it, to a stream of `train`'s own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Any, Protocol

from shoal_entrypoint.capture import Capture

__all__ = ["Filter", "Output", "Stream"]

_CHUNK = 64 * 1024
_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1024 * 1024
# What is held back of an unfinished line is passed on when no more of it has come for so long.
_SILENCE_SECONDS = 1.0


class Filter(Protocol):
    """What changes a stream on its way: see tagging.Tagger."""

    @property
    def held(self) -> bytes:
        """What it keeps back."""
        ...

    def __call__(self, chunk: bytes) -> bytes:
        """What to write after this chunk has come."""
        ...

    def flush(self) -> bytes:
        """What to write of what is held, because nothing comes."""
        ...

    def rest(self) -> bytes:
        """What to write at the end."""
        ...


class Output:
    """How the output of a command is passed on. This is the plain way: byte for byte."""

    def through(self, target: int) -> Filter | None:  # noqa: ARG002 - for those that do more
        """What changes the command's stdout (1) or stderr (2)."""
        return None

    def started(self, supervisor: Any, child: Any) -> None:
        """The command runs."""

    def ended(self) -> None:
        """The command has ended, and nothing of it is left."""


class Stream:
    """One pipe."""

    def __init__(self, pipe: Any, target: int, capture: Capture, through: Filter | None = None) -> None:
        self.pipe = pipe
        self.due: float | None = None  # when to flush()
        self._target = target
        self._capture = capture
        self._through = through
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # only for fewer wake-ups; an unprivileged user's pipe budget may be spent
            fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)

    def read(self) -> int | None:
        """Pass on what there is: the number of bytes, 0 at the end of the stream, None when nothing has come."""
        try:
            chunk = os.read(self.pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return None
        if self._through is None:
            _write_all(self._target, chunk)
        elif chunk:
            _write_all(self._target, self._through(chunk))
            self.due = time.monotonic() + _SILENCE_SECONDS if self._through.held else None
        if chunk:
            self._capture.feed(chunk)
        return len(chunk)

    def flush(self) -> None:
        """Pass on what is held back."""
        self.due = None
        if self._through is not None:
            _write_all(self._target, self._through.flush())

    def close(self) -> None:
        """Pass on the rest; nothing more comes."""
        self.due = None
        if self._through is not None:
            _write_all(self._target, self._through.rest())
        self._capture.finish()
        self.pipe.close()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            time.sleep(0.001)  # the platform handed over a non-blocking pipe
        except OSError:
            return  # nobody reads any more: the job goes on
