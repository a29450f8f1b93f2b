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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness import segments

_QUIT_SECONDS = 10.0
_KILL_SECONDS = 5.0


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
        self._there_before = segments.present()
        self._segments: set[segments.Identity] = set()

    def start(self, commands: Iterable[Command], limit: float) -> None:
        """Start the processes and wait until every rank is ready. None of them is left if that fails.

        Raises:
            JobError: a rank is not ready within `limit` seconds.
        """
        try:
            self._launch(commands)
            for reply in self._collect(limit):
                if not reply.startswith("ready "):
                    raise JobError(f"answered {reply!r} instead of ready")
        except BaseException:
            self.kill()
            raise
        # By now: of a rank that ends unasked nothing can be seen later.
        self._note_segments(self._running())

    def _launch(self, commands: Iterable[Command]) -> None:
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

    def tell_to_quit(self) -> None:
        """Let the ranks leave in good order, as soon as they have done what they are at."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send("quit")

    def wait(self, end: float) -> None:
        """Wait until all processes have ended, launchers and their daemons too, until the clock says `end` at most."""
        while self._running() and time.monotonic() < end:
            time.sleep(0.05)

    def kill(self) -> None:
        """End by force what still runs, and remove the shared memory that the ranks leave."""
        end = time.monotonic() + _KILL_SECONDS
        self._note_segments(self._running())
        while (running := self._running()) and time.monotonic() < end:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for process in self._processes:
            process.kill()
            process.wait()
        segments.remove(self._segments)
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []

    def _note_segments(self, pids: Iterable[int]) -> None:
        self._segments |= segments.mapped(pids) - self._there_before

    def _running(self) -> list[int]:
        """Every process of this job, wherever a launcher started it: the environment names the folder."""
        for process in self._processes:
            process.poll()
        mark = f"BENCH_CHANNEL={self.folder}\0".encode()
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if mark in _environment(entry)]


def quit_all(jobs: Collection[Job]) -> None:
    """End jobs that worked: all are told to quit before any is waited for; by force when they do not go."""
    end = time.monotonic() + _QUIT_SECONDS
    try:
        for job in jobs:
            job.tell_to_quit()
        for job in jobs:
            job.wait(end)
    finally:
        for job in jobs:
            job.kill()


def _environment(process: Path) -> bytes:
    """Empty when the process has ended."""
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
