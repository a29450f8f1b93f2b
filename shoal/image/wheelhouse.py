"""Fetches a row's locked wheels with the host's own pip, so that the build needs no index at all.

Why not leave it to pip inside the build: a host's pip may read local folders of many gigabytes, a netrc file, a keyring
or a client certificate, none of which a build can be given whole. Here every such setting simply works, the wheels are
checked against the lock twice, and an image is built again without the network.
"""

import platform
import subprocess
import sys
from pathlib import Path

from shoal.errors import ShoalError
from shoal.image.lock import lock_names
from shoal.image.versions import Row

OLDEST_GLIBC, NEWEST_GLIBC = 5, 36  # manylinux_2_5 .. Debian 12's own

# An index that cannot be reached is asked twice, not six times for each of thirty packages.
_FALLBACK = ("--retries", "1", "--extra-index-url")


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


def fetch(name: str, row: Row, root: Path, log: Path) -> Path:
    """Download what is missing of row `name` into wheelhouse/<name>/; return that folder.

    Raises:
        ShoalError: pip found a wheel nowhere, or one that does not match its hash.
    """
    folder = root / "wheelhouse" / name
    folder.mkdir(parents=True, exist_ok=True)
    wanted = locks(name, row, root)
    stamp = folder / ".complete"
    state = "".join(path.read_text() for path in wanted)
    if stamp.is_file() and stamp.read_text() == state:
        return folder
    for path in wanted:
        _download(path, row, folder, log)
    stamp.write_text(state)
    return folder


def _download(lock: Path, row: Row, folder: Path, log: Path) -> None:
    machine = platform.machine()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
    ]
    command += ["--implementation", "cp", "--python-version", row.python, "--find-links", str(folder)]
    for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1):
        command += ["--platform", f"manylinux_2_{minor}_{machine}"]
    command += ["--platform", f"manylinux2014_{machine}", "--platform", f"manylinux2010_{machine}"]
    command += ["--dest", str(folder), "--requirement", str(lock)]
    # The host's own sources first: asking a public index that cannot be reached costs minutes of retries.
    attempts = [command] if row.torch_index is None else [command, [*command, *_FALLBACK, row.torch_index]]
    for attempt in attempts:
        done = subprocess.run(attempt, capture_output=True, text=True, check=False)
        with log.open("a") as stream:
            stream.write(done.stdout + done.stderr)
        if done.returncode == 0:
            return
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip download failed"]
    raise ShoalError(
        f"{lock.name}: {errors[-1].removeprefix('ERROR: ')} "
        f"(looked where this machine's pip looks, then in {row.torch_index}): "
        f"give pip a find-links folder or an index that has it (all of it: {log})",
        exit_code=3,
    )
