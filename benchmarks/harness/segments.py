"""Files of shared memory that a job's ranks have mapped: some libraries leave theirs in /dev/shm, Open MPI where it is
killed, DeepSpeed always. A file is known by device and inode, so that a name that another program uses too, or that of
a host's own /dev/shm, cannot be mistaken for it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
Identity = tuple[int, int]
# ADDRESSES PERMISSIONS OFFSET MAJOR:MINOR INODE PATH
_MAPPED = re.compile(rf"^\S+ \S+ \S+ (\w+):(\w+) (\d+) +{SHARED_MEMORY}/", re.MULTILINE)


def present() -> set[Identity]:
    """The files that are there now."""
    return set(_by_identity())


def mapped(processes: Iterable[int]) -> set[Identity]:
    """The files that these processes have mapped."""
    found: set[Identity] = set()
    for pid in processes:
        with contextlib.suppress(OSError):  # It has ended.
            text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            found |= {(os.makedev(int(a, 16), int(b, 16)), int(inode)) for a, b, inode in _MAPPED.findall(text)}
    return found


def remove(files: set[Identity]) -> None:
    """Remove those of `files` that are still there."""
    for identity, path in _by_identity().items():
        if identity in files:
            path.unlink(missing_ok=True)


def _by_identity() -> dict[Identity, Path]:
    found = {}
    for path in SHARED_MEMORY.iterdir() if SHARED_MEMORY.is_dir() else ():
        with contextlib.suppress(OSError):  # Another program removed it.
            status = path.lstat()
            found[status.st_dev, status.st_ino] = path
    return found
