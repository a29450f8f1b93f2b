"""The releases of torch that smddp is for, with the Python that each is tried on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# As in the published images of that release; what has none gets the newest that has wheels.
PYTHON_OF = {
    "1.12": "3.8",
    "1.13": "3.9",
    "2.0": "3.10",
    "2.1": "3.10",
    "2.2": "3.10",
    "2.3": "3.11",
    "2.4": "3.11",
    "2.5": "3.11",
    "2.6": "3.12",
    "2.7": "3.12",
    "2.8": "3.12",
    "2.9": "3.12",
    "2.10": "3.13",
    "2.11": "3.12",
    "2.12": "3.12",
    "2.13": "3.12",
    "2.14": "3.13",
    "2.15": "3.13",
}
RELEASES = list(PYTHON_OF)
# With headers, for modules are compiled against them.
_USABLE = "import os, sys, sysconfig, venv; print('%d.%d' % sys.version_info[:2]); " + (
    "sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()['include'], 'Python.h')))"
)


def at_least(release: str, other: str) -> bool:
    """Whether `release` ("2.9") is `other` ("2.10") or later."""
    return _numbers(release) >= _numbers(other)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def check_releases(asked: list[str]) -> list[str]:
    """The releases to try: those asked for, which must be known ones, or all."""
    for release in asked:
        if release not in PYTHON_OF:
            raise SystemExit(f"torch {release}: not a release that is known here: {', '.join(RELEASES)}")
    return asked or RELEASES


def find_python(version: str) -> Path | None:
    """An interpreter of this minor version: on PATH, else pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    # Newest first: 3.9.18 before 3.9.2.
    folders = sorted(pyenv.glob(f"{version}.*"), key=lambda path: [int(x) for x in re.findall(r"\d+", path.name)])
    candidates += [folder / "bin" / "python" for folder in reversed(folders)]
    for candidate in candidates:
        done = subprocess.run([candidate, "-c", _USABLE], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None
