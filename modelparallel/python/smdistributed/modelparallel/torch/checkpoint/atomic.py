"""Writes a file all or nothing: into a temporary file beside it, to the disk, then under its name."""

from __future__ import annotations

import errno
import os
import pickle
import secrets
import shutil
from pathlib import Path
from typing import Any, BinaryIO, Callable

import torch

from ..exceptions import CheckpointError


def save_object(obj: Any, path: Path, *, pickle_module: Any = pickle, pickle_protocol: int = 2) -> None:
    """torch.save(obj, path); the file that was there before stays until the new one is complete and on the disk.

    Raises CheckpointError, with the file and the cause, when it cannot be written.
    """

    def write(file: BinaryIO) -> None:
        torch.save(obj, file, pickle_module=pickle_module, pickle_protocol=pickle_protocol)

    write_file(path, write)


def write_text(path: Path, text: str) -> None:
    """The text as a file, UTF-8. Raises CheckpointError when it cannot be written."""
    write_file(path, lambda file: file.write(text.encode()))


def write_file(path: Path, write: Callable[[Any], Any]) -> None:
    """Let `write` fill a new file, then give it its name. Raises CheckpointError when that fails."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    writer = None
    try:
        with part.open("xb") as file:
            writer = _Writer(file)
            write(writer)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except Exception as error:
        # torch's own writer reports a failed write as a RuntimeError of its own: the system's reason is in `writer`.
        cause = (writer.error if writer else None) or error
        if isinstance(cause, OSError):
            raise CheckpointError(f"cannot write {path}: {_reason(cause, path)}") from error
        raise
    finally:
        part.unlink(missing_ok=True)


class _Writer:
    """A file for torch.save that remembers why a write failed."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self.file.flush()


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _reason(error: OSError, path: Path) -> str:
    said = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free
        return f"{said} ({free / 2**20:.1f} MiB are free there): free some, or save to another place"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{said}: this process (user {os.getuid()}) may not write in {path.parent}"
    if error.errno == errno.ENOENT:
        return f"the folder {path.parent} does not exist: create it first"
    return said
