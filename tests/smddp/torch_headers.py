"""Compiles the torch binding against the headers of every torch release, for one source serves them all.

torch_headers.py [RELEASE ...]      all known minor releases by default; prints a table and, last, one JSON line

Of each release the smallest wheel is downloaded by pip and only its headers are kept, in --cache. They are checked with
`-fsyntax-only` and this Python's headers, module.cpp and all other files at once, as the wheel's build does: what is
not shown is that the binary links and runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import pybind11
from torch_versions import at_least, check_releases

ROOT = Path(__file__).parents[2]
CORE = ROOT / "smddp_core"
# Wheels for Macs are a tenth of those for Linux and carry the same headers.
PLATFORMS = [f"macosx_{major}_0_arm64" for major in range(11, 16)]
PYTHONS = ["310", "311", "312"]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Woverloaded-virtual", "-Werror"]


@dataclass(frozen=True)
class Result:
    """How a release fared: `errors` holds the compiler's lines that say "error"."""

    release: str
    version: str
    standard: str
    seconds: float
    errors: list[str]


def cxx_standard(release: str) -> str:
    """Headers from 2.14 on refuse anything older than C++20."""
    return "c++20" if at_least(release, "2.14") else "c++17"


def download(release: str, folder: Path) -> Path:
    """Puts a wheel of the newest patch of `release` into `folder`."""
    problem = ""
    for python in PYTHONS:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--implementation=cp", f"--python-version={python}", f"--abi=cp{python}", "--abi=none"]
        command += [f"--platform={platform}" for platform in PLATFORMS]
        command += [f"--dest={folder}", f"torch=={release}.*"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return next(folder.glob("torch-*.whl"))
        problem = done.stderr.strip().splitlines()[-1]
    raise SystemExit(f"torch_headers.py: torch {release}: no wheel could be downloaded: {problem}")


def headers(release: str, cache: Path) -> Path:
    """The folder with the headers of `release`, downloaded if the cache lacks them."""
    folder = cache / release
    if not (folder / "torch" / "version.py").exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            wheel = zipfile.ZipFile(download(release, Path(scratch)))
            names = [name for name in wheel.namelist() if name.startswith("torch/include/")]
            wheel.extractall(folder, [*names, "torch/version.py"])
    return folder


def version_of(folder: Path) -> str:
    names: dict[str, str] = {}
    exec((folder / "torch" / "version.py").read_text(), names)
    return names["__version__"]


def check(release: str, cache: Path, compiler: str) -> Result:
    folder = headers(release, cache)
    include = folder / "torch" / "include"
    standard = cxx_standard(release)
    command = [compiler, f"-std={standard}", "-fsyntax-only", *WARNINGS]
    if release == "1.12":  # The pybind11 in its wheel does not know Pythons from 3.11 on.
        command += ["-isystem", pybind11.get_include()]
    command += [f"-I{CORE / 'torch/slim'}", "-DAT_PER_OPERATOR_HEADERS", f"-I{CORE / 'torch'}"]
    command += ["-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]
    command += ["-isystem", sysconfig.get_paths()["include"], f"-I{CORE / 'include'}", f"-I{CORE / 'src'}"]
    command += ['-DSMDDP_VERSION="0"', f'-DSMDDP_TORCH_VERSION="{release}"']
    began = time.monotonic()
    errors: list[str] = []
    files = sorted(path.name for path in (CORE / "torch").glob("*.cpp"))
    for unit in (["module.cpp"], [name for name in files if name != "module.cpp"]):
        source = "".join(f'#include "{name}"\n' for name in unit)
        done = subprocess.run([*command, "-x", "c++", "-"], input=source, capture_output=True, text=True)
        errors += [line.replace(str(CORE), ".") for line in done.stderr.splitlines() if "error:" in line]
        if done.returncode and not errors:
            errors.append(f"{unit[0]}: the compiler ended with status {done.returncode}")
    return Result(release, version_of(folder), standard, round(time.monotonic() - began, 1), errors)


def table(results: Sequence[Result]) -> str:
    lines = [f"{'release':10} {'headers of':14} {'standard':9} {'seconds':>8}  errors"]
    for result in results:
        errors = f"{len(result.errors)}: {result.errors[0]}" if result.errors else "none"
        lines.append(f"{result.release:10} {result.version:14} {result.standard:9} {result.seconds:8.1f}  {errors}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", metavar="RELEASE")
    default = ROOT / ".shoal" / "torch-headers"
    parser.add_argument("--cache", type=Path, default=default, help=f"folder for headers ({default})")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    parser.add_argument("--jobs", type=int, default=2, help="releases at a time (2)")
    parser.add_argument("--verbose", action="store_true", help="print all errors")
    options = parser.parse_args()
    releases = check_releases(options.releases)
    results: list[Result] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda release: check(release, options.cache, options.compiler), releases):
            results.append(result)
            print(f"torch {result.release}: {len(result.errors)} errors", file=sys.stderr, flush=True)
    print(table(results))
    if options.verbose:
        for result in results:
            print("\n".join([f"--- {result.release}", *result.errors]))
    failed = [result.release for result in results if result.errors]
    print(json.dumps({"ok": not failed, "failed": failed, "results": [asdict(result) for result in results]}))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
