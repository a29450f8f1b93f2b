"""Room: /dev/shm against what the job's processes share, and the file systems that a job writes to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable, NamedTuple

from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row, size, worst

__all__ = ["LITTLE_DISK", "SMALL_SHM", "Room", "disks", "nearly_full", "room", "shared_memory", "shm_need"]

SMALL_SHM = 64 << 20  # what Docker gives
# Open MPI makes a file of this size there for each rank, and goes on, slower, where it does not fit.
_MPI_RANK = 4 << 20
# smddp's buffers on a host, at most; they go to other memory where /dev/shm is full.
_SMDDP_GROUP = 32 << 20
_LEAST_SHM = 16 << 20  # a data loader with workers passes each batch through it
_ADVICE_SHM = (
    "Give it more: docker run --shm-size=1g or more; in Kubernetes, mount an emptyDir with medium: Memory on /dev/shm."
)
_LEAST_DISK = 16 << 20
LITTLE_DISK = 1 << 30
_LITTLE_INODES = 1000


class Room(NamedTuple):
    """A file system, as statvfs tells it."""

    total: int
    free: int
    inodes: int  # 0: the file system does not count them
    free_inodes: int
    read_only: bool


def room(path: str) -> Room | None:
    """The file system of a folder, or None where there is no such folder."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    unit = found.f_frsize
    read_only = bool(found.f_flag & os.ST_RDONLY)
    return Room(found.f_blocks * unit, found.f_bavail * unit, found.f_files, found.f_favail, read_only)


def nearly_full(found: Room) -> bool:
    """Whether a job that writes there will run into the end of it."""
    return found.free < LITTLE_DISK or (found.inodes > 0 and found.free_inodes < _LITTLE_INODES)


def shm_need(processes: int, mpi: bool, smddp: bool) -> int:
    """Bytes that launcher and collectives take of a host's /dev/shm. What data loaders take, only the script knows."""
    return (processes * _MPI_RANK if mpi else 0) + (_SMDDP_GROUP if smddp else 0)


def shared_memory(found: Room | None, processes: int = 1, mpi: bool = False, smddp: bool = False, gpus: int = 0) -> Row:
    """/dev/shm against the processes of a host. smddp alone is content with any size; see shm_need."""
    need = shm_need(processes, mpi, smddp)
    if found is None:
        return Row("shared_memory", PROBLEM, "there is no /dev/shm", _ADVICE_SHM, {"need_bytes": need})
    values = {"total_bytes": found.total, "free_bytes": found.free, "need_bytes": need}
    text = f"{size(found.free)} free of {size(found.total)}"
    least = max(_LEAST_SHM, processes * _MPI_RANK if mpi else 0)
    if found.read_only:
        return Row("shared_memory", PROBLEM, "/dev/shm is read-only", _ADVICE_SHM, values)
    if found.free < least:
        return Row("shared_memory", PROBLEM, f"{text}: the job needs {size(least)}", _ADVICE_SHM, values)
    if need:
        text += f"; the launcher's processes take up to {size(need)}"
    if found.total <= SMALL_SHM and (processes > 1 or gpus):
        reason = "data loaders with workers, and NCCL between GPUs, may need more than Docker's 64 MB. "
        return Row("shared_memory", NOTE, text, reason[0].upper() + reason[1:] + _ADVICE_SHM, values)
    return Row("shared_memory", OK, text, "", values)


def disks(paths: Iterable[str]) -> list[Row]:
    """One row a file system that a job writes to."""
    groups: dict[tuple[int, bool], list[str]] = {}
    for path in paths:
        existing = _existing(Path(path))
        # Only a test whether writing is allowed: the check leaves no file behind.
        key = (existing.stat().st_dev, os.access(existing, os.W_OK))
        groups.setdefault(key, []).append(path)
    return [_disk(names, writable) for (_, writable), names in groups.items()]


def _disk(names: list[str], writable: bool) -> Row:
    found = room(str(_existing(Path(names[0])))) or Room(0, 0, 0, 0, read_only=False)
    text = f"{', '.join(names)}: {size(found.free)} free of {size(found.total)}"
    values = {
        "paths": names,
        "total_bytes": found.total,
        "free_bytes": found.free,
        "free_inodes": found.free_inodes if found.inodes else None,
        "writable": writable,
    }
    faults: list[tuple[str, str, str]] = []
    if not writable:
        why = "read-only" if found.read_only else f"not writable for uid {os.getuid()}"
        faults.append((PROBLEM, why, "Mount a folder there that the job's user can write to."))
    elif nearly_full(found):
        state = PROBLEM if found.free < _LEAST_DISK or (found.inodes and found.free_inodes < 1) else NOTE
        what = "almost full" if found.free < LITTLE_DISK else f"only {found.free_inodes} files more (inodes)"
        faults.append((state, what, "Free some of it, or mount a larger volume there: checkpoints are lost without."))
    state = worst([fault[0] for fault in faults])
    text = ", ".join([text, *(fault[1] for fault in faults)])
    return Row("disk", state if faults else OK, text, " ".join(fault[2] for fault in faults), values)


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
