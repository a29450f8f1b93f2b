"""The folders of a checkpoint path: a new one takes its name only when it is complete, and old ones go.

A folder is filled under a temporary name, then renamed; one of the same name that was there is renamed out of the way
first and deleted last, so that at any moment a complete one can be found. What an interrupted save or deletion left
behind is removed by the next save.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from ..exceptions import CheckpointError
from . import atomic, names

_FILLING, _REPLACED, _DELETED = "filling", "replaced", "deleted"


def filling(path: Path, name: str, number: str) -> Path:
    """Where the new folder `name` is filled; `number` tells one save from another."""
    return path / f".{name}.{number}.{_FILLING}"


def publish(full: Path, path: Path, name: str) -> None:
    """Give the filled folder its name, in place of what has it. Raises CheckpointError when that fails."""
    final = path / name
    try:
        atomic.sync_folder(full)
        if final.exists():
            replaced = path / f".{name}.{secrets.token_hex(4)}.{_REPLACED}"
            final.rename(replaced)
            full.rename(final)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            full.rename(final)
        atomic.sync_folder(path)
    except OSError as error:
        raise CheckpointError(f"cannot give {full} the name {final}: {error.strerror or error}") from error


def existing(path: Path, name: str) -> Path | None:
    """The complete folder of that name; the one it was about to replace if the replacing was interrupted; or None."""
    final = path / name
    if final.is_dir():
        return final
    return next(iter(sorted(path.glob(f".{name}.*.{_REPLACED}"))), None)


def remove_leftovers(path: Path) -> None:
    """Delete what interrupted saves and deletions left, and put back a folder that was replaced by nothing."""
    for left in path.glob(f".*.{_REPLACED}"):
        final = path / left.name[1:].rsplit(".", 2)[0]
        if final.exists():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.rename(final)
    for pattern in (f".*.{_FILLING}", f".*.{_DELETED}"):
        for left in path.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def keep_newest(path: Path, number: int) -> list[str]:
    """Delete all partial checkpoints but the newest `number`; what was deleted, by name, oldest first."""
    found = [one for one in path.glob(f"*{names.PARTIAL}") if one.is_dir() and not one.name.startswith(".")]
    found.sort(key=lambda one: (one.stat().st_mtime_ns, one.name))
    gone = found[:-number]
    for one in gone:
        # Renamed first: a deletion that is interrupted must not leave a part of a checkpoint that looks whole.
        doomed = path / f".{one.name}.{secrets.token_hex(4)}.{_DELETED}"
        one.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    return [one.name for one in gone]


def newest(path: Path) -> str:
    """The name in the file `newest`. Raises CheckpointError when there is none."""
    try:
        return (path / names.NEWEST).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path / names.NEWEST}, the name of the newest checkpoint: {error.strerror or error}"
        ) from error
