#!/usr/bin/env python3
"""Times what pip takes for smddp's wheel on two cores, from nothing and without ccache.

    .venv/bin/python benchmarks/wheel_build.py [--rounds 3] [--against COMMIT]

With --against, an earlier commit's wheel is built too, in turns with this tree's. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import program, report

ROOT = Path(__file__).resolve().parents[1]
MOST_SECONDS = 60.0
CORES = 2
OURS = "this tree"


class BuildError(Exception):
    """There is no wheel to be timed."""


@dataclass(frozen=True)
class Built:
    """One wheel: how long it took, what all processes' cores had to do for it, and how large it is."""

    seconds: float
    core_seconds: float
    bytes: int


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time the build of smddp's wheel.")
    parser.add_argument("--rounds", type=int, default=3, help="wheels of each (default: %(default)s)")
    parser.add_argument("--against", metavar="COMMIT", help="also build this commit's, in turns")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is less than 1")
    return options


def sources(commit: str | None, folder: Path) -> None:
    """Put smddp_core of a commit, or as it lies here, into `folder`.

    Raises:
        BuildError: git has no such commit.
    """
    if commit is None:
        shutil.copytree(ROOT / "smddp_core", folder / "smddp_core", ignore=shutil.ignore_patterns("build"))
        return
    archive = folder / "sources.zip"
    command = ["git", "-C", str(ROOT), "archive", f"--output={archive}", commit, "smddp_core"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"--against {commit}: {done.stderr.strip().splitlines()[-1]}")
    shutil.unpack_archive(archive, folder)


def build(commit: str | None) -> Built:
    """Build one wheel in a new folder, as `pip install ./smddp_core` does where torch is installed.

    Raises:
        BuildError: it cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="smddp-wheel-") as name:
        folder = Path(name)
        sources(commit, folder)
        argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
        argv += ["--no-deps", "--wheel-dir", str(folder / "wheels"), str(folder / "smddp_core")]
        env = os.environ | {"CCACHE_DISABLE": "1"}
        cores, began = _core_seconds(), time.monotonic()
        done = subprocess.run(argv, env=env, capture_output=True, text=True)
        seconds, core_seconds = time.monotonic() - began, _core_seconds() - cores
        if done.returncode:
            raise BuildError(f"pip wheel ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
        (wheel,) = (folder / "wheels").glob("*.whl")
        return Built(seconds, core_seconds, wheel.stat().st_size)


def _core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pace() -> float:
    """Seconds of this machine for ten million additions in Python: two runs are compared by it."""
    began, total = time.process_time(), 0
    for number in range(10_000_000):
        total += number
    return time.process_time() - began


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> tuple[dict[str, list[Built]], list[float]]:
    """Return the wheels of each tree, built in turns, and the machine's pace before each round and at the end."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    trees: dict[str, str | None] = {OURS: None}
    if options.against:
        trees[options.against] = options.against
    built: dict[str, list[Built]] = {name: [] for name in trees}
    paces = [pace()]
    for number in range(options.rounds):
        # The order turns, so that neither always has the warmer files.
        for name in list(trees)[:: 1 if number % 2 == 0 else -1]:
            say(f"round {number + 1} of {options.rounds}: {name}")
            built[name].append(build(trees[name]))
        paces.append(pace())
    return built, paces


def summary(built: dict[str, list[Built]], paces: list[float]) -> dict[str, Any]:
    """The JSON line."""
    trees = {
        name: {
            "seconds": round(statistics.median(wheel.seconds for wheel in wheels), 1),
            "core_seconds": round(statistics.median(wheel.core_seconds for wheel in wheels), 1),
            "bytes": int(statistics.median(wheel.bytes for wheel in wheels)),
            "all_seconds": [round(wheel.seconds, 1) for wheel in wheels],
        }
        for name, wheels in built.items()
    }
    line: dict[str, Any] = {"benchmark": "wheel_build", "trees": trees}
    for name in trees:
        if name != OURS:
            pairs = zip(built[name], built[OURS], strict=True)
            line["ratio"] = round(statistics.median(theirs.seconds / ours.seconds for theirs, ours in pairs), 3)
    measured = round(statistics.median(wheel.seconds for wheel in built[OURS]), 1)
    claim = {"what": "the wheel on 2 cores", "unit": "s", "target": MOST_SECONDS, "at_most": True}
    line["claims"] = [{**claim, "measured": measured, "holds": measured <= MOST_SECONDS}]
    line["machine"] = {
        "cores": len(os.sched_getaffinity(0)),
        "pace": [round(seconds, 2) for seconds in paces],
        "load": round(os.getloadavg()[0], 1),
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
    }
    return line


def main() -> int:
    """Measure, print a table and the JSON line."""
    options = parse(sys.argv[1:])
    line = summary(*measure(options, report.progress()))
    rows = [["", "seconds", "core seconds", "KB"]]
    for name, tree in line["trees"].items():
        rows.append([name, f"{tree['seconds']:.1f}", f"{tree['core_seconds']:.1f}", f"{tree['bytes'] / 1000:.0f}"])
    print(report.aligned(rows))
    print(report.verdict(line["claims"][0]))
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main, (BuildError, OSError)))
