"""One job: the ranks of one library, started once and then told what to do through pipes, so that libraries can take
turns within milliseconds and none of them pays its start inside a measurement.

Protocol, one line each way, in files of a folder that all ranks see: the driver writes to ``in.RANK``, the rank answers
in ``out.RANK``. A rank says ``ready PID`` first. Commands:

``measure OPERATION BYTES ROUNDOFF ITERATIONS BATCHES CHECK_AGAIN MEET_ONCE``
    the ranks meet before each batch, or before the first alone. Answered by ``ok WRONG CPU BEGIN END...``: elements
    that were wrong, CPU seconds of the process for one operation, and the clock (CLOCK_MONOTONIC, in seconds) when
    each batch began and ended.
``wait BYTES SECONDS``
    rank 0 comes SECONDS late to an all-reduce; answered by ``ok 0 CPU SECONDS``.
``quit``
    leave in good order.

``error TEXT`` may answer anything. A rank whose ``in`` is closed ends at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_QUIT_SECONDS = 10.0


class JobError(RuntimeError):
    """A library did not start, died, hung, or said that it failed."""


@dataclass(frozen=True)
class Command:
    """A process to start: a rank, or a launcher of all ranks."""

    argv: list[str]
    env: Mapping[str, str]


class _Pipe:
    """The two named pipes of a rank, seen from the driver."""

    def __init__(self, folder: Path, rank: int) -> None:
        paths = [folder / f"in.{rank}", folder / f"out.{rank}"]
        for path in paths:
            os.mkfifo(path)
        # Read-write, so that opening waits for nobody and a rank that ends is no end of file.
        self.commands, self.replies = (os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) for path in paths)
        self._text = b""

    def send(self, line: str) -> None:
        os.write(self.commands, line.encode() + b"\n")

    def take(self) -> str | None:
        """A whole line, if there is one by now."""
        with contextlib.suppress(BlockingIOError):
            self._text += os.read(self.replies, 65536)
        line, found, rest = self._text.partition(b"\n")
        if not found:
            return None
        self._text = rest
        return line.decode(errors="replace")

    def close(self) -> None:
        os.close(self.commands)
        os.close(self.replies)


class Job:
    """The ranks of one library."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.log = folder / "log"
        self._pipes = [_Pipe(folder, rank) for rank in range(ranks)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.pids: list[int] = []

    def start(self, commands: Iterable[Command], limit: float) -> None:
        """Start the processes and wait until every rank is ready.

        Raises:
            JobError: a rank is not ready within `limit` seconds.
        """
        with self.log.open("wb") as log:
            for command in commands:
                # The parent-death signal: nothing outlives a driver that was killed.
                argv = ["setpriv", "--pdeathsig", "KILL", *command.argv]
                env = {**command.env, "BENCH_CHANNEL": str(self.folder)}
                self._processes.append(
                    subprocess.Popen(
                        argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                    )
                )
        replies = self._collect(limit)
        for reply in replies:
            if not reply.startswith("ready "):
                raise JobError(f"answered {reply!r} instead of ready")
        self.pids = [int(reply.split()[1]) for reply in replies]

    def ask(self, line: str, limit: float) -> list[list[float]]:
        """Give all ranks one command and return the numbers each answered, in rank order.

        Raises:
            JobError: a rank failed, ended, or did not answer within `limit` seconds.
        """
        for pipe in self._pipes:
            pipe.send(line)
        answers = []
        for rank, reply in enumerate(self._collect(limit)):
            verdict, _, numbers = reply.partition(" ")
            if verdict != "ok":
                raise JobError(f"rank {rank}: {numbers or reply}")
            answers.append([float(number) for number in numbers.split()])
        return answers

    def _collect(self, limit: float) -> list[str]:
        """One line from each rank."""
        end = time.monotonic() + limit
        missing = dict(enumerate(self._pipes))
        found: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for rank, pipe in missing.items():
                selector.register(pipe.replies, selectors.EVENT_READ, rank)
            while missing:
                for key, _ in selector.select(timeout=0.2):
                    rank = key.data
                    line = missing[rank].take()
                    if line is not None:
                        found[rank] = line
                        selector.unregister(missing.pop(rank).replies)
                if missing:
                    self._check_alive(limit, end, sorted(missing))
        return [found[rank] for rank in sorted(found)]

    def _check_alive(self, limit: float, end: float, missing: list[int]) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise JobError(f"a process ended with {process.returncode}: {self.last_words()}")
        if time.monotonic() > end:
            raise JobError(f"ranks {missing} did not answer within {limit:.0f} s: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what the processes printed, on one line."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip().strip("-=")]
        # A launcher explains at length that a rank failed; the rank's own error stands further up.
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
        return " | ".join([*errors[:1], *lines[-4:]])[:600] or "(it printed nothing)"

    def close(self, *, kill: bool = False) -> None:
        """End the ranks: politely, unless `kill`; by force when they do not go."""
        if not kill:
            for pipe in self._pipes:
                with contextlib.suppress(OSError):
                    pipe.send("quit")
        end = time.monotonic() + (0 if kill else _QUIT_SECONDS)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        self._kill()
        for pipe in self._pipes:
            pipe.close()

    def _kill(self) -> None:
        """Each process leads a session of its own; ranks that a launcher started elsewhere are known by their ids."""
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if running:
            for pid in self.pids:
                if str(self.folder).encode() in _environment(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def _environment(pid: int) -> bytes:
    """Empty when the process is gone; tells our rank from another process that got its number."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
