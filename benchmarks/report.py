#!/usr/bin/env python3
"""Measures how long `shoal report` takes for a long run of many hosts, and how large its page is.

    .venv/bin/python benchmarks/report.py [--hosts 8] [--ranks 64] [--minutes 60]

Observation files as the sampler and the ranks write them are made up first, in a temporary folder, with one rank that
is late, so that rules fire and everything is drawn. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import program

ROOT = Path(__file__).resolve().parents[1]
MOST_SECONDS, MOST_MB = 10.0, 5.0
CORES, GPUS = 16, 8
INTERVAL_S, STEP_S = 0.5, 0.5
BEGAN = 1_700_000_000
_OPERATIONS = (("AllReduce", 8, 1e8), ("Barrier", 1, 0), ("Broadcast", 2, 4e3))  # of a step: kind, calls, bytes
_KINDS = 512  # different values of a metric: enough for texts of every length


class ReportError(Exception):
    """`shoal report` did not do what is to be timed."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure how long `shoal report` takes.")
    parser.add_argument("--hosts", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=64, help="of all hosts (default: %(default)s)")
    parser.add_argument("--minutes", type=int, default=60, help="how long the run was (default: %(default)s)")
    options = parser.parse_args(arguments)
    if min(options.hosts, options.minutes) < 1 or options.ranks < options.hosts:
        parser.error("--hosts, --minutes: at least 1; --ranks: at least one a host")
    return options


def _metrics() -> Iterator[tuple[str, str, str, float, float]]:
    """Yield type, name, dimension, least and most of what a host with GPUs measures."""
    for core in range(CORES):
        yield "cpu", f"cpu{core}", "CPUUtilization", 5, 100
        yield "cpu", f"cpu{core}", "I/OWaitPercentage", 0, 10
    for gpu in range(GPUS):
        yield "gpu", f"gpu{gpu}", "GPUUtilization", 0, 100
        yield "gpu", f"gpu{gpu}", "GPUMemoryUtilization", 60, 64
    yield "network", "ReceiveBytesPerSecond", "Algorithm", 1e6, 2e9
    yield "network", "TransmitBytesPerSecond", "Algorithm", 1e6, 2e9
    yield "memory", "MemoryUsedPercent", "", 40, 45
    yield "i/o", "ReadThroughputInBytesPerSecond", "", 0, 3e8
    yield "i/o", "WriteThroughputInBytesPerSecond", "", 0, 1e7
    yield "i/o", "IOPS", "", 0, 4e3


def _write_host(folder: Path, node: str, minutes: int, dice: random.Random) -> int:
    """Write a host's system metrics, a file a minute; return how many values."""
    heads = [
        [
            f'{{"Type":"{kind}","Name":"{name}","Dimension":"{dimension}","Value":{dice.uniform(least, most):.10g},'
            for _ in range(_KINDS)
        ]
        for kind, name, dimension, least, most in _metrics()
    ]
    count = 0
    for minute in range(minutes):
        first = (BEGAN + 60 * minute) // 60 * 60
        lines = []
        for sample in range(int(60 / INTERVAL_S)):
            tail = f'"NodeId":"{node}","Timestamp":{first + sample * INTERVAL_S + dice.uniform(0, 0.01):.6f}}}\n'
            lines += [dice.choice(texts) + tail for texts in heads]
        path = folder / "system" / "incremental" / time.strftime("%Y%m%d%H", time.gmtime(first))
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{first}.{node}.json").write_text("".join(lines))
        count += len(lines)
    return count


def _write_rank(folder: Path, node: str, rank: int, minutes: int, dice: random.Random) -> int:
    """Write a rank's steps; return how many."""
    end, lines = BEGAN + 20.0, []
    late = 0.1 if rank == 1 else 0.0
    for number in range(int((60 * minutes - 20) / STEP_S)):
        end += STEP_S
        step = {
            "NodeId": node,
            "Rank": rank,
            "Step": number,
            "Timestamp": end,
            "Seconds": STEP_S + dice.uniform(-0.02, 0.02),
            "DataSeconds": dice.uniform(0, 0.03),
            "CollectiveSeconds": 0.15 - late + dice.uniform(0, 0.03),
            "CollectiveBytes": 1e8,
            "CheckpointSeconds": 0,
            "Collectives": {
                kind: {"Calls": calls, "Bytes": size, "Seconds": 0.2, "BytesPerSecond": 5 * size}
                for kind, calls, size in _OPERATIONS
            },
        }
        lines.append(json.dumps(step) + "\n")
    (folder / "steps").mkdir(exist_ok=True)
    (folder / "steps" / f"{node}-{rank}.jsonl").write_text("".join(lines))
    return len(lines)


def write_run(run: Path, hosts: int, ranks: int, minutes: int) -> dict[str, Any]:
    """Make up a run's observation files; return how much there is."""
    dice, folder = random.Random(11), run / "profiler-output"
    names = [f"algo-{host + 1}" for host in range(hosts)]
    values = sum(_write_host(folder, node, minutes, dice) for node in names)
    steps = sum(_write_rank(folder, names[rank * hosts // ranks], rank, minutes, dice) for rank in range(ranks))
    size = sum(path.stat().st_size for path in folder.rglob("*.json*"))
    return {"values": values, "steps": steps, "input_mb": round(size / 1e6, 1)}


def measure(run: Path) -> dict[str, Any]:
    """Run the command as a user does; return its time, processor time, memory, and its page's size."""
    command = [sys.executable, "-m", "shoal", "report", str(run)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before, began = _used(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    seconds, after = time.monotonic() - began, _used()
    if done.returncode:
        raise ReportError(f"shoal report ended with {done.returncode}: {done.stderr.strip()}")
    page = Path(done.stdout.strip())
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(after[0] - before[0], 2),
        "peak_mb": round(after[1] / 1000),
        "page_mb": round(page.stat().st_size / 1e6, 2),
        "says": done.stderr.splitlines()[0],
    }


def _used() -> tuple[float, int]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss


def main() -> int:
    """Make the input, measure, print a sentence and the JSON line."""
    options = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="shoal-report-") as folder:
        made = write_run(Path(folder), options.hosts, options.ranks, options.minutes)
        found = measure(Path(folder))
    print(f"{found['seconds']} s, {found['page_mb']} MB, at load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    claims = [
        {"what": "seconds", "at_most": MOST_SECONDS, "measured": found["seconds"]},
        {"what": "MB of the page", "at_most": MOST_MB, "measured": found["page_mb"]},
    ]
    held = [{**claim, "holds": claim["measured"] <= claim["at_most"]} for claim in claims]
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    run = {"hosts": options.hosts, "ranks": options.ranks, "minutes": options.minutes, **made}
    print(json.dumps({"benchmark": "report", **run, **found, **machine, "claims": held}))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main, (ReportError, OSError)))
