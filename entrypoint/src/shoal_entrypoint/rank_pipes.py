"""The ranks of this host's torchrun write to pipes of their own, so that each line can be told whose it is.

torchrun's command line stays as it is: PYTHON_EXEC makes it start every rank through rank_python.py, which sends us the
pipes over a socket in the run folder that only this user can reach.
"""

from __future__ import annotations

import array
import contextlib
import functools
import os
import socket
import sys
from pathlib import Path
from typing import Mapping

from shoal_entrypoint import rank_python
from shoal_entrypoint.capture import Capture, RankCapture
from shoal_entrypoint.relay import Output, Stream
from shoal_entrypoint.supervise import Finished, Supervisor
from shoal_entrypoint.tagging import Lines, Tagger, Untagged

__all__ = ["RankPipes"]

_BACKLOG = 1024  # ranks of a host that start at once
_MESSAGE_BYTES = 256
_MOST_STREAMS = 2
_LONGEST_FIRST_LINE = 127  # Linux before 5.1 cuts the name of an interpreter there


class RankPipes(Output):
    """Raises OSError where the run folder is no place for a socket and a program."""

    def __init__(self, run: Path, host: str) -> None:
        self._host = host
        self._lines = Lines()
        self._program = run / "rank-python"
        self._address = run / "ranks"
        _write_program(self._program)
        with contextlib.suppress(FileNotFoundError):
            self._address.unlink()  # of an earlier run here
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._address))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._links: set[socket.socket] = set()

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What makes torchrun start ranks our way."""
        values = {os.fsdecode(rank_python.ADDRESS): str(self._address), "PYTHON_EXEC": str(self._program)}
        if env.get("PYTHON_EXEC"):
            values[os.fsdecode(rank_python.THEIRS)] = env["PYTHON_EXEC"]
        return values

    def through(self, target: int) -> Untagged:
        """torchrun's own lines, and those of ranks that have no pipes."""
        return Untagged(self._lines[target])

    def started(self, supervisor: Supervisor, child: Finished) -> None:
        """Wait for ranks, also for those that torchrun starts again."""
        self._supervisor, self._child = supervisor, child
        supervisor.watch(self._listener, self._accept)

    def ended(self) -> None:
        """Take the pipes of ranks that ended before anybody looked, and no more of them."""
        self._accept()
        for link in list(self._links):
            self._receive(link)
        self._supervisor.unwatch(self._listener)
        self._listener.close()
        for path in (self._address, self._program):
            with contextlib.suppress(OSError):
                path.unlink()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:  # nobody there
                return
            link.setblocking(False)
            self._links.add(link)
            self._supervisor.watch(link, functools.partial(self._receive, link))

    def _receive(self, link: socket.socket) -> None:
        told, pipes = b"", array.array("i")
        with contextlib.suppress(OSError):
            told, extra, _, _ = link.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(_MOST_STREAMS * pipes.itemsize))
            for level, kind, data in extra:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    pipes.frombytes(data[: len(data) - len(data) % pipes.itemsize])
        self._supervisor.unwatch(link)
        self._links.discard(link)
        link.close()
        try:
            rank, local_rank, *streams = map(int, told.split())
        except ValueError:  # the rank was killed before it could say who it is
            streams = []
        if len(streams) == len(pipes) and set(streams) <= {1, 2}:
            self._relay(rank, local_rank, dict(zip(streams, pipes)))
        else:
            for pipe in pipes:
                os.close(pipe)

    def _relay(self, rank: int, local_rank: int, pipes: Mapping[int, int]) -> None:
        said = RankCapture(rank, Capture(), Capture())
        if pipes:
            self._child.ranks[local_rank] = said  # of its last life
        for target, pipe in pipes.items():
            tagger = Tagger(f"[{self._host}:{rank}] ", self._lines[target])
            capture = said.stdout if target == 1 else said.stderr
            stream = Stream(os.fdopen(pipe, "rb", buffering=0), target, capture, tagger)
            self._supervisor.relay(self._child, stream)


def _write_program(path: Path) -> None:
    """rank_python.py as a program of its own: PYTHON_EXEC is one word."""
    first = f"#!{sys.executable} -IS\n"
    if not sys.executable or len(first) > _LONGEST_FIRST_LINE or sys.executable.split() != [sys.executable]:
        raise OSError(f"{sys.executable}: Linux does not take it as a script's interpreter: too long, or with blanks")
    path.write_text(first + Path(rank_python.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    path.chmod(0o700)
    if not os.access(path, os.X_OK):
        raise OSError(f"{path}: cannot be run there: is it mounted noexec?")
