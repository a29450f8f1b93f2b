"""What has to be compiled or fetched before anything can be measured. All of it lands in one cache folder, is made
again only when its source changed, and is never put into the interpreter's own environment."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "peers"
_FLAGS = ("-std=c++20", "-O3", "-Wall", "-Wextra", "-pthread")
_LIMIT_SECONDS = 600


class UnavailableError(RuntimeError):
    """Something cannot be had here; the text says why in one line."""


def run_tool(argv: list[str], what: str, **environment: str) -> str:
    """Run a compiler or an installer and return what it printed.

    Raises:
        UnavailableError: it is not there, fails or hangs.
    """
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_SECONDS,
            env={**os.environ, **environment},
        )
    except FileNotFoundError:
        raise UnavailableError(f"{what}: {argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{what}: not done after {_LIMIT_SECONDS} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reasons = [line for line in lines if "error" in line.lower()] or lines[-1:]
        raise UnavailableError(f"{what}: {reasons[0].strip() if reasons else f'exit code {done.returncode}'}")
    return done.stdout


class Cache:
    """A folder of made things, each named by a hash of what it was made from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def made(self, name: str, key: str, make: Callable[[Path], None]) -> Path:
        """The file or folder `name`, made by `make(path)` unless the one for `key` is there."""
        target = self.folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        if not target.exists():
            with self._unfinished(target) as part:
                make(part)
                part.rename(target)
        return target

    @contextlib.contextmanager
    def _unfinished(self, target: Path) -> Iterator[Path]:
        part = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            yield part
        finally:
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)

    def compiled(self, name: str, source: str, compiler: list[str], *flags: str, shared: bool = False) -> Path:
        """`peers/SOURCE` compiled together with the payload.

        Raises:
            UnavailableError: there is no compiler, or it finds an error.
        """
        sources = [SOURCES / source] if source == "payload.cpp" else [SOURCES / source, SOURCES / "payload.cpp"]
        text = "".join(file.read_text() for file in [*sources, *sorted(SOURCES.glob("*.hpp"))])
        argv = [*compiler, *_FLAGS, *(["-shared", "-fPIC"] if shared else []), *map(str, sources)]

        def make(target: Path) -> None:
            run_tool([*argv, "-o", str(target), *flags], f"compiling {source}")

        return self.made(name, f"{argv}{flags}{text}", make)

    def payload(self) -> Path:
        """The shared object through which Python fills and checks buffers."""
        return self.compiled("payload", "payload.cpp", ["g++"], shared=True)

    def probe(self) -> Path:
        return self.compiled("probe", "probe.cpp", ["g++"])

    def environment(self, *packages: str) -> Path:
        """A virtual environment of its own with Python packages (here: of libraries that are not Python).

        Raises:
            UnavailableError: they cannot be installed.
        """

        def make(target: Path) -> None:
            what = f"installing {' '.join(packages)}"
            run_tool([sys.executable, "-m", "venv", str(target)], what)
            python = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            run_tool([*python, "--disable-pip-version-check", *packages], what)

        # A virtual environment must not move: it is made at its last place, under a mark that says it is whole.
        target = self.folder / f"env-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:12]}"
        if not (target / "whole").exists():
            shutil.rmtree(target, ignore_errors=True)
            make(target)
            (target / "whole").touch()
        return target

    def source_distribution(self, requirement: str) -> Path:
        """The unpacked sources of a Python package.

        Raises:
            UnavailableError: they cannot be fetched.
        """

        def make(target: Path) -> None:
            target.mkdir()
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            pip += ["--no-build-isolation", "--no-binary", ":all:", "--dest", str(target), requirement]
            run_tool(pip, f"fetching {requirement}", DS_BUILD_OPS="0")
            for archive in list(target.iterdir()):
                run_tool(["tar", "-xf", str(archive), "-C", str(target)], f"unpacking {archive.name}")
                archive.unlink()

        folder = self.made("source", requirement, make)
        return next(child for child in folder.iterdir() if child.is_dir())
