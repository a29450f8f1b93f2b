"""The tar archives that put `/opt/ml` into a container before it starts: folders, config files, the script's folder."""

import io
import tarfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO

from shoal.job.plan import CODE, ML

# The image's user need not be root: it must be able to write where the contract lets it write.
_WRITABLE = (f"{ML}/model", f"{ML}/output", f"{ML}/output/data", f"{ML}/checkpoints", CODE)
_READABLE = (ML, f"{ML}/input", f"{ML}/input/config", f"{ML}/input/data")
_LEFT_BEHIND = {".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def config_archive(config: Mapping[str, str], kept: Collection[str] = (), mounted: Collection[str] = ()) -> bytes:
    """Return an archive, relative to `/`, of the folders of the contract and the config files of one host.

    Folders that are `kept` are the script's to write, too. Those that are `mounted` are left as they are.
    """
    buffer = io.BytesIO()
    writable = {*_WRITABLE, *kept}
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in sorted({*_READABLE, *writable} - {*mounted}):
            info = _member(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o777 if folder in writable else 0o755
            archive.addfile(info)
        for name, text in config.items():
            data = text.encode()
            info = _member(f"{ML}/input/config/{name}")
            info.size, info.mode = len(data), 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _member(path: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path.lstrip("/"))
    info.mtime = time.time()
    return info


def write_code_archive(folder: Path, stream: IO[bytes]) -> None:
    """Write an archive of the content of a source folder, relative to it."""
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for entry in sorted(folder.iterdir()):
            archive.add(entry, entry.name, filter=_for_container)


def repack_code_archive(archive: IO[bytes], stream: IO[bytes]) -> None:
    """Write what `write_code_archive` would for the folder that an archive (plain or compressed) was made of.

    Raises:
        tarfile.TarError: it is no archive, or not whole.
    """
    with tarfile.open(fileobj=archive, mode="r|*") as source, tarfile.open(fileobj=stream, mode="w") as target:
        for member in source:
            kept = _for_container(member)
            if kept is not None:
                target.addfile(kept, source.extractfile(member) if member.isreg() else None)


def _for_container(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if _LEFT_BEHIND.intersection(member.name.split("/")):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
