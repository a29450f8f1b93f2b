#!/usr/bin/env python3
"""Measures what the sampler of `train` costs beside a job: its share of one core and its memory.

    .venv/bin/python benchmarks/sampler.py [--seconds 60] [--interval-ms 500]

The sampler runs as `train` starts it, with processes below it to look at. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import program

SOURCE = Path(__file__).resolve().parents[1] / "entrypoint" / "src"
MOST_PERCENT, MOST_MIB = 0.3, 30.0
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from shoal_entrypoint.profile.sampler import main; main()"
_JOB_PROCESSES = 8
_TICK = os.sysconf("SC_CLK_TCK")


class SamplerError(Exception):
    """The sampler did not do what is to be timed."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure what the sampler costs.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: %(default)g)")
    parser.add_argument("--interval-ms", type=int, default=500, help="between samples (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.seconds < 1 or not 100 <= options.interval_ms <= 60_000:
        parser.error("--seconds: at least 1; --interval-ms: 100 to 60000")
    return options


def measure(seconds: float, interval_ms: int, folder: Path) -> dict[str, Any]:
    """Return the cost of sampling for so long: start-up apart, which happens once."""
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(SOURCE), str(folder), "algo-1", str(interval_ms)]
    waiting = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
    others = [subprocess.Popen(waiting, stdin=subprocess.PIPE) for _ in range(_JOB_PROCESSES)]
    sampler = subprocess.Popen(argv, stdin=subprocess.PIPE)
    try:
        time.sleep(max(1.0, 2 * interval_ms / 1000))
        lines, began = _lines(folder), time.monotonic()
        before = _cpu_seconds(sampler.pid)
        if not lines:
            raise SamplerError("the sampler writes nothing")
        time.sleep(seconds)
        used, real = _cpu_seconds(sampler.pid) - before, time.monotonic() - began
        written = _lines(folder) - lines
        peak = _peak_mib(sampler.pid)
    finally:
        for process in (sampler, *others):
            process.communicate()
    if sampler.returncode:
        raise SamplerError(f"the sampler ended with {sampler.returncode}")
    return {
        "percent_of_one_core": round(100 * used / real, 4),
        "peak_mib": round(peak, 1),
        "lines": written,
        "seconds": round(real, 1),
    }


def _cpu_seconds(pid: int) -> float:
    """By the scheduler's own count where there is one: a tick is as long as ten samples take."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.json"))


def main() -> int:
    """Measure, print a sentence and the JSON line."""
    options = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.seconds, options.interval_ms, Path(folder))
    load = os.getloadavg()[0]
    print(f"{found['percent_of_one_core']} % of one core, {found['peak_mib']} MiB, at load {load:.1f}", file=sys.stderr)
    claims = [
        {"what": "percent of one core", "at_most": MOST_PERCENT, "measured": found["percent_of_one_core"]},
        {"what": "MiB at most", "at_most": MOST_MIB, "measured": found["peak_mib"]},
    ]
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(load, 1)}
    held = [{**claim, "holds": claim["measured"] <= claim["at_most"]} for claim in claims]
    print(json.dumps({"benchmark": "sampler", "interval_ms": options.interval_ms, **found, **machine, "claims": held}))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main, (SamplerError, OSError)))
