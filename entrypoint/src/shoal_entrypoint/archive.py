"""Unpacking the user's code. Nothing in an archive can end up, or point, outside of the code directory.

What tries to is brought inside (`../a.py` becomes `a.py`) or left out with a line in the log, as jobs are used to: an
archive that was packed carelessly is no reason to fail. Only imported by jobs that bring an archive.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from pathlib import Path

from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError

__all__ = ["extract", "is_archive"]

# What is raised for files that are damaged: KeyError for a link to nothing, RuntimeError for links in a circle.
_DAMAGED = (tarfile.TarError, OSError, EOFError, KeyError, RuntimeError, zlib.error)


def is_archive(path: Path) -> bool:
    """Whether a file is a tar archive, of any compression; one that is damaged is, and extract() says so."""
    try:
        return tarfile.is_tarfile(path)
    except _DAMAGED:
        return True


def extract(archive: Path, code: Path, source: str) -> None:
    """Unpack into `code`; `source` is where the archive is from, for messages."""
    try:
        with tarfile.open(archive) as tar:
            root = code.resolve()
            for member in tar:
                if _inside(member, root):
                    _extract_one(tar, member, code)
    except _DAMAGED as error:
        raise JobError(f"sagemaker_submit_directory: {source}: cannot be unpacked: {error}") from error


def _extract_one(tar: tarfile.TarFile, member: tarfile.TarInfo, code: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        tar.extract(member, code, filter="data")
        return
    member.mode &= 0o755  # Pythons before the 2023 security releases
    member.uid, member.gid, member.uname, member.gname = os.geteuid(), os.getegid(), "", ""
    tar.extract(member, code)


def _inside(member: tarfile.TarInfo, root: Path) -> bool:
    """Give a member a name below `root`; whether it may be unpacked."""
    given = member.name
    parts = [part for part in given.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    if not parts:
        return False  # the directory itself
    member.name = "/".join(parts)
    if member.name != given and not given.startswith("./"):
        log(f"{given!r} in the archive leads outside of the code directory: unpacked as {member.name!r}")
    target = (root / member.name).resolve()
    reason = ""
    if not _below(target, root):
        reason = "a link on its way leads outside of the code directory"
    elif not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        reason = "it is no file, directory or link"
    elif member.issym() or member.islnk():
        start = target.parent if member.issym() else root
        if not _below((start / member.linkname).resolve(), root):
            reason = f"it is a link to {member.linkname!r}, outside of the code directory"
    if reason:
        log(f"{given!r} in the archive is left out: {reason}")
    return not reason


def _below(path: Path, root: Path) -> bool:
    return path == root or root in path.parents
