"""Starts this command as several ranks on this host, for those who have no launcher at hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = ("RANK", "LOCAL_RANK", "SMDATAPARALLEL_LOCAL_RANK")
# A shell's code for a command that SIGTERM ended.
_TERMINATED = 128 + signal.SIGTERM


def run(ranks: int, arguments: list[str]) -> int:
    """Run ``smddp ARGUMENTS`` as ``ranks`` ranks that meet in a file; the exit code is 1 if any failed, else 0.

    SIGTERM ends the ranks, removes their folder, and exits with 143.
    """
    with _told_of_sigterm() as signals, tempfile.TemporaryDirectory(prefix="smddp-") as folder:
        command = [sys.executable, "-m", "smdistributed.dataparallel.command", *arguments, "--store", f"{folder}/store"]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                processes.append(subprocess.Popen(command, env=_environment(rank, ranks)))
            return _wait(processes, signals)
        finally:
            for process in processes:
                process.kill()
                process.wait()


@contextmanager
def _told_of_sigterm() -> Iterator[list[int]]:
    """The list fills as SIGTERM comes. Raised in the handler, an exit could come between a rank's start and its entry
    in the list of those to end, or in the midst of ending them.
    """
    signals: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


def _environment(rank: int, ranks: int) -> dict[str, str]:
    own = dict.fromkeys(_NAMES, str(rank))
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
    # As torchrun does: ranks that each use all cores for arithmetic would disturb one another.
    return {"OMP_NUM_THREADS": "1", **os.environ, **own, **sizes, "GROUP_RANK": "0"}


def _wait(processes: list[subprocess.Popen[bytes]], signals: list[int]) -> int:
    """One that fails leaves the others waiting for it: their end is the caller's to bring about."""
    while True:
        if signals:
            raise SystemExit(_TERMINATED)
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code and code < 0:  # the others hear of it, too late to say so
                sys.stderr.write(f"smddp: rank {rank} was ended by {_name_of(-code)}\n")
        if any(codes):
            return 1
        if None not in codes:
            return 0
        time.sleep(0.05)


def _name_of(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:  # one of the real-time signals
        return f"signal {number}"
