"""The archives a job leaves behind: what every host has in one folder, merged into one `.tar.gz`, streamed.

What comes out of a container is not trusted: only files, folders and links that stay inside the archive are taken.
Nothing is unpacked on the way, so nothing is ever written here under a name, an owner or a mode the script chose.
"""

import contextlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

# Weights hardly compress, and one core at level 9 takes minutes a gigabyte.
_COMPRESSION = 1
UNFINISHED = ".shoal-unfinished"  # ends the name of what is being written
_LONGEST_PREFIX = 128  # a file's own name may be as long as a name can be


@dataclass
class Merge:
    """One archive being made from the folders of several hosts. The first to bring a name keeps it."""

    archive: tarfile.TarFile
    notes: list[str] = field(default_factory=list)
    _taken: dict[str, tuple[str, bool]] = field(default_factory=dict)  # name -> (host, is a folder)

    def add(self, host: str, stream: IO[bytes], still_wanted: Callable[[], None] = lambda: None) -> None:
        """Add the content of a folder, given as the tar stream whose first member is the folder itself."""
        with tarfile.open(fileobj=stream, mode="r|") as source:
            for member in source:
                still_wanted()
                name = _below_root(member.name)
                if not name:
                    continue
                objection = _objection(member, name) or self._clash(host, name, member)
                if objection:
                    self.notes.append(f"{host}: {name} left out: {objection}")
                    continue
                self._taken.setdefault(name, (host, member.isdir()))
                self.archive.addfile(_plain(member, name), source.extractfile(member) if member.isreg() else None)

    def _clash(self, host: str, name: str, member: tarfile.TarInfo) -> str | None:
        if name in self._taken:
            other, is_folder = self._taken[name]
            if not (is_folder and member.isdir()):
                return f"{other} has one of that name"
        for parent in _parents(name):
            other, is_folder = self._taken.get(parent, (host, True))
            if not is_folder:
                return f"{parent} of {other} is not a folder"
        if member.islnk() and self._taken.get(_below_root(member.linkname), ("", False))[0] != host:
            return "it is a hard link to a file that was left out"
        return None


def write_archive(
    target: Path,
    folders: Iterable[tuple[str, Iterable[bytes]]],
    still_wanted: Callable[[], None] = lambda: None,
) -> list[str]:
    """Write `target` from (host, tar stream of its folder) pairs; return a note for each thing left out.

    `target` appears when it is complete. `still_wanted` is asked again and again, and may raise to give up.
    """
    with (
        finished_or_absent(target) as file,
        tarfile.open(fileobj=file, mode="w:gz", compresslevel=_COMPRESSION) as archive,
    ):
        merge = Merge(archive)
        for host, chunks in folders:
            merge.add(host, cast("IO[bytes]", Chunks(chunks, still_wanted)), still_wanted)
    return merge.notes


def write_folder(
    target: Path,
    folders: Iterable[tuple[str, Iterable[bytes]]],
    still_wanted: Callable[[], None] = lambda: None,
) -> list[str]:
    """Write `target` as `write_archive` does, but as a folder of files.

    Links are left out: a folder in S3 has none.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.", suffix=UNFINISHED) as draft:
        notes = write_archive(Path(draft, "all.tar.gz"), folders, still_wanted)
        content = Path(draft, target.name)
        content.mkdir()
        with tarfile.open(Path(draft, "all.tar.gz"), mode="r:gz") as archive:
            for member in archive:
                still_wanted()
                path = content / member.name
                if member.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                elif member.isreg():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    source = archive.extractfile(member)
                    with path.open("wb") as file:
                        shutil.copyfileobj(cast("IO[bytes]", source), file)
                    path.chmod(member.mode)
                    os.utime(path, (member.mtime, member.mtime))
                else:
                    notes.append(f"{member.name} left out: it is a link")
        content.rename(target)
    return notes


def without_empty_folders(top: Path) -> None:
    """Remove the folders that hold no file, `top` among them."""
    for folder, _folders, _files in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):  # it holds something
            Path(folder).rmdir()


class finished_or_absent:  # noqa: N801 - reads as what it promises
    """A file that appears under its name when the `with` block ends well, and never otherwise."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> IO[bytes]:
        self._file = tempfile.NamedTemporaryFile(
            dir=self._target.parent, prefix=f".{self._target.name[:_LONGEST_PREFIX]}.", suffix=UNFINISHED, delete=False
        )
        return cast("IO[bytes]", self._file)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        temporary = Path(self._file.name)
        try:
            self._file.close()  # writes what is left, and may find the disk full
            if kind is None:
                umask = os.umask(0)
                os.umask(umask)
                temporary.chmod(0o666 & ~umask)  # a temporary file is private; a result is as any other of the user
                temporary.rename(self._target)
        finally:
            temporary.unlink(missing_ok=True)


def first_file(chunks: Iterable[bytes]) -> bytes:
    """Return the content of the first file in a tar stream; empty if there is none."""
    with tarfile.open(fileobj=cast("IO[bytes]", Chunks(chunks)), mode="r|") as source:
        for member in source:
            if member.isreg():
                content = source.extractfile(member)
                return content.read() if content else b""
    return b""


class Chunks:
    """A readable file over chunks, as tarfile's stream mode wants one."""

    def __init__(self, chunks: Iterable[bytes], still_wanted: Callable[[], None] = lambda: None) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = b""
        self._still_wanted = still_wanted

    def read(self, size: int) -> bytes:
        """Return `size` bytes, or what is left."""
        pieces, length = [self._rest], len(self._rest)
        while length < size:
            self._still_wanted()
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            pieces.append(chunk)
            length += len(chunk)
        data = b"".join(pieces)
        self._rest = data[size:]
        return data[:size]


def member_name(member: tarfile.TarInfo) -> str | None:
    """Return the path of a file in the engine's archive, below the folder asked for; None for what is no file."""
    name = _below_root(member.name)
    return name if name and member.isreg() and _objection(member, name) is None else None


def _below_root(name: str) -> str:
    """Return a member's name without the folder the engine puts first."""
    return "/".join(part for part in name.split("/")[1:] if part not in ("", "."))


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]


def _objection(member: tarfile.TarInfo, name: str) -> str | None:
    if ".." in name.split("/"):
        return "its name leads out of the archive"
    if member.issym():
        if os.path.isabs(member.linkname):  # noqa: PTH117 - a name in an archive, not a path of this machine
            return "it links to an absolute path"
        if os.path.normpath(os.path.join(os.path.dirname(name), member.linkname)).split("/")[0] == "..":  # noqa: PTH118, PTH120
            return "it links out of the archive"
    elif not (member.isreg() or member.isdir() or member.islnk()):
        return "it is neither a file, a folder nor a link"
    return None


def _plain(member: tarfile.TarInfo, name: str) -> tarfile.TarInfo:
    plain = tarfile.TarInfo(name)
    plain.type, plain.mtime = tarfile.REGTYPE if member.isreg() else member.type, member.mtime
    plain.size = member.size if member.isreg() else 0
    plain.mode = member.mode & 0o755 | (
        0o700 if member.isdir() else 0o600
    )  # no set-user-id, nothing for others to write
    plain.linkname = _below_root(member.linkname) if member.islnk() else member.linkname
    return plain
