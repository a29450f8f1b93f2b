"""Virtual environments of the SDKs: each its own, from a lock in requirements/, kept in .shoal between runs."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import uv

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".shoal"
_WHOLE = "whole"  # a mark, made last: an environment must not be moved, so it cannot be renamed into place


def python_of(name: str) -> Path:
    """Return the interpreter of the environment of requirements/NAME.txt, made anew when that file has changed."""
    lock = ROOT / "requirements" / f"{name}.txt"
    folder = KEPT / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    KEPT.mkdir(exist_ok=True)
    with (KEPT / f"{name}.making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)  # a second run of the tests waits for the first one's
        if not (folder / _WHOLE).exists():
            for older in KEPT.glob(f"{name}-*"):
                shutil.rmtree(older)
            _make(folder, lock)
            (folder / _WHOLE).touch()
    return folder / "bin" / "python"


def _make(folder: Path, lock: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    # uv takes a sixth of pip's time here; pip knows the settings of this machine that uv does not read (pip.conf).
    commands: list[list[str | Path]] = [
        [uv.find_uv_bin(), "pip", "install", "--python", python],
        [python, "-m", "pip", "install", "--disable-pip-version-check"],
    ]
    said = ""
    for command in commands:
        options: list[str | Path] = ["--quiet", "--require-hashes", "-r", lock]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said += done.stderr
    raise RuntimeError(f"{lock.name} could not be installed: {said}")
