"""The processes below this one, read from /proc, and signals to them. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Container, Iterable

__all__ = ["adopt_orphans", "descendants", "ranks", "send"]

_PR_SET_CHILD_SUBREAPER = 36
# What Open MPI and torchrun put into the environment of ranks, and of nothing above them.
_RANK_MARKS = (b"OMPI_COMM_WORLD_RANK=", b"TORCHELASTIC_RUN_ID=")


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, as PID 1 is by nature: otherwise they could not be found."""
    if os.getpid() == 1:
        return
    import ctypes  # 4 ms, and not needed as PID 1

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int, without: Container[int] = ()) -> list[int]:
    """Every living process below `root`, parents before children; not those of `without`, nor what is below them."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parent = _parent(int(entry))
            if parent:
                children.setdefault(parent, []).append(int(entry))
    found = [pid for pid in children.get(root, []) if pid not in without]
    for pid in found:
        found += [child for child in children.get(pid, []) if child not in without]
    return found


def ranks(root: int) -> list[int]:
    """The ranks below `root`: processes with a rank in their environment whose parent has none."""
    return [pid for pid in descendants(root) if _has_rank(pid) and not _has_rank(_parent(pid))]


def send(pids: Iterable[int], signum: int) -> None:
    """Signal processes; those that are gone already are no error."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            continue
        # A stopped process acts on no signal but SIGKILL until it is continued.
        if signum == signal.SIGTERM:
            _continue(pid)


def _continue(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGCONT)


def _parent(pid: int) -> int:
    """The parent's id; 0 for a process that is gone or a zombie (nothing can be sent to those)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[1])


def _has_rank(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read()
    except OSError:
        return False
    return any(environ.startswith(mark) or b"\0" + mark in environ for mark in _RANK_MARKS)
