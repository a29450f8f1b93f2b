"""Fetches a row's locked wheels with the host's own pip, so that the build needs no index at all.

Why not leave it to pip inside the build: a host's pip may read local folders of many gigabytes, a netrc file, a keyring
or a client certificate, none of which a build can be given whole. Here every such setting simply works, the wheels are
checked against the lock twice, and an image is built again without the network.

wheelhouse/<lock>/ is what one lock names, for every row that has the lock; wheelhouse/.pool/<sha256>/ has every
wheel once: a wheel that two locks name is one file with two names.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import sys
from pathlib import Path

from shoal.errors import ShoalError
from shoal.image.children import Children
from shoal.image.exclusive import exclusive
from shoal.image.lock import lock_names
from shoal.image.versions import Row

# manylinux_2_5 .. what the locks are made for; the oldest base has 2.31.
OLDEST_GLIBC, NEWEST_GLIBC = 5, 28

# An index that cannot be reached is asked twice, not six times for each of thirty packages.
_FALLBACK = ("--retries", "1", "--extra-index-url")
_PIP_DOWNLOAD = ("-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:")


def has_locks(name: str, row: Row, root: Path) -> bool:
    """Whether all lock files of row `name` are there."""
    return all((root / "images" / "locks" / file).is_file() for file in lock_names(name, row))


def locks(name: str, row: Row, root: Path) -> list[Path]:
    """Return the lock files whose wheels the build of row `name` installs.

    Raises:
        ShoalError: one is missing.
    """
    folder = root / "images" / "locks"
    paths = [folder / file for file in lock_names(name, row)]
    for path in paths:
        if not path.is_file():
            raise ShoalError(f"{path.relative_to(root)}: no such lock: run `shoal lock {name}`")
    return paths


def fetch(name: str, row: Row, root: Path, log: Path, children: Children | None = None) -> list[Path]:
    """Download what is missing of row `name` into wheelhouse/<lock>/, a folder a lock; return the wheels.

    Raises:
        ShoalError: pip found a wheel nowhere, or one that does not match its hash.
    """
    children = children or Children()
    wheelhouse = root / "wheelhouse"
    wheelhouse.mkdir(exist_ok=True)
    wheels: list[Path] = []
    for lock in locks(name, row, root):
        folder = wheelhouse / lock.stem
        with exclusive(wheelhouse / f".{lock.stem}.lock", children.check):  # two rows may need the same folder at once
            if not _complete(folder, lock):
                _fill(folder, lock, row, log, children)
        wheels += sorted(folder.glob("*.whl"))
    return wheels


def _complete(folder: Path, lock: Path) -> bool:
    stamp = folder / ".complete"
    return stamp.is_file() and stamp.read_text() == lock.read_text()


def _fill(folder: Path, lock: Path, row: Row, log: Path, children: Children) -> None:
    """Download into a folder beside, then exchange: half a folder must not pass for a whole one."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    pool = folder.parent / ".pool"
    _download(lock, row, [*_pooled(pool, lock), folder], partial, log, children)
    for wheel in partial.glob("*.whl"):
        _share(wheel, pool)
    (partial / ".complete").write_text(lock.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _pooled(pool: Path, lock: Path) -> list[Path]:
    """Return the pool's folders of wheels that `lock` names."""
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock.read_text()))
    return [pool / sha256 for sha256 in sorted(hashes) if (pool / sha256).is_dir()]


def _share(wheel: Path, pool: Path) -> None:
    """Make `wheel` and the pool's the same file, by a hard link."""
    with wheel.open("rb") as stream:
        pooled = pool / hashlib.file_digest(stream, "sha256").hexdigest() / wheel.name
    pooled.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        pooled.hardlink_to(wheel)
        return
    linked = wheel.with_suffix(".link")
    linked.hardlink_to(pooled)
    linked.replace(wheel)


def _download(lock: Path, row: Row, here: list[Path], to: Path, log: Path, children: Children) -> None:
    """Run pip: with the folders `here` alone, then as this host is set up, then with the row's index."""
    machine = platform.machine()
    command = [sys.executable, *_PIP_DOWNLOAD, "--implementation", "cp", "--python-version", row.python]
    for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1):
        command += ["--platform", f"manylinux_2_{minor}_{machine}"]
    command += ["--platform", f"manylinux2014_{machine}", "--platform", f"manylinux2010_{machine}"]
    command += ["--dest", str(to), "--requirement", str(lock)]
    present = [f"--find-links={folder}" for folder in here if folder.is_dir()]
    # The host's own sources before the row's: asking a public index that cannot be reached costs minutes of retries.
    attempts = [[*command, "--no-index", *present]] if present else []
    attempts += [[*command, *present]]
    attempts += [] if row.torch_index is None else [[*command, *present, *_FALLBACK, row.torch_index]]
    for attempt in attempts:
        done = children.run(attempt, environment={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
        with log.open("a") as stream:
            stream.write(done.stdout + done.stderr)
        if done.returncode == 0:
            return
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip download failed"]
    last = f", then in {row.torch_index}" if row.torch_index else ""
    raise ShoalError(
        f"{lock.name}: {errors[-1].removeprefix('ERROR: ')} (looked where this machine's pip looks{last}): "
        f"give pip a find-links folder or an index that has it (all of it: {log})",
        exit_code=3,
    )
