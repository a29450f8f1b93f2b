"""What the job's processes do: how many load data, how much processor time loaders, communication and others take.

Looked at every few seconds: on a large host there are thousands of threads.
"""

from __future__ import annotations

import os

from shoal_entrypoint.processes import descendants

__all__ = ["Job"]

_EVERY_SECONDS = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_LOADER = b"pt_data_worker"  # what torch 2.6 and later call the process
_COMMUNICATION = (b"smddp", b"gloo", b"NCCL", b"nccl", b"pt_gloo", b"pt_nccl")


class Job:
    """The processes below `root`, but this one."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._due = 0.0
        self._then = 0.0
        self._before: dict[tuple[int, int], int] = {}  # (process, thread) -> ticks
        self._read_before: dict[int, int] = {}

    def sample(self, now: float) -> list[tuple[str, str, str, float]]:
        """Return counts and percentages (100 is one core), every five seconds; else nothing."""
        if now < self._due:
            return []
        self._due = now + _EVERY_SECONDS
        ticks: dict[tuple[int, int], int] = {}
        spent = {"loaders": 0, "communication": 0, "others": 0}
        read, loaders = {}, 0
        command_lines: dict[int, bytes] = {}
        for pid in descendants(self._root, without={os.getpid()}):
            try:
                name, parent = _name_and_parent(pid)
                command_lines[pid] = _bytes(f"/proc/{pid}/cmdline")
                # A process that was forked, and not executed, by a Python program: a loader of an older torch.
                forked = command_lines[pid] and command_lines.get(parent) == command_lines[pid]
                is_loader = name == _LOADER or (bool(forked) and b"python" in command_lines[pid])
                loaders += is_loader
                read[pid] = _read_bytes(pid)
                for thread, (thread_name, used) in _threads(pid).items():
                    ticks[pid, thread] = used
                    kind = "loaders" if is_loader else "others"
                    kind = "communication" if thread_name.startswith(_COMMUNICATION) else kind
                    spent[kind] += max(0, used - self._before.get((pid, thread), 0)) if self._before else 0
            except (OSError, ValueError, IndexError):
                continue  # gone meanwhile, or another user's
        seconds = now - self._then
        values: list[tuple[str, str, str, float]] = [("process", "loaders", "Count", loaders)]
        if self._before and seconds > 0:
            for kind, used in spent.items():
                values.append(("process", kind, "CPUPercentage", 100 * used / _TICKS / seconds))
            grown = sum(max(0, size - self._read_before.get(pid, 0)) for pid, size in read.items())
            values.append(("process", "read", "BytesPerSecond", grown / seconds))
        self._before, self._then, self._read_before = ticks, now, read
        return values


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _name_and_parent(pid: int) -> tuple[bytes, int]:
    head, _, rest = _bytes(f"/proc/{pid}/stat").rpartition(b")")
    return head.partition(b"(")[2], int(rest.split()[1])


def _threads(pid: int) -> dict[int, tuple[bytes, int]]:
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        head, _, rest = _bytes(f"/proc/{pid}/task/{thread}/stat").rpartition(b")")
        fields = rest.split()
        found[int(thread)] = (head.partition(b"(")[2], int(fields[11]) + int(fields[12]))
    return found


def _read_bytes(pid: int) -> int:
    """What a process has read, wherever from: also from file systems whose devices are elsewhere."""
    for line in _bytes(f"/proc/{pid}/io").splitlines():
        if line.startswith(b"rchar:"):
            return int(line.split()[1])
    return 0
