#!/usr/bin/env python3
"""Times `train` beside the existing toolkit's command of the same name: until the user's first line, memory, log
throughput, and how long a job goes on after its script has ended.

    .venv/bin/python benchmarks/entrypoint.py [--quick] [--part start,log,end,hosts]

The part `hosts` needs root, `mpirun` and `sshd`. Ends with one JSON line. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import functools
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import program, report
from harness.build import Cache, UnavailableError
from harness.network import NetworkError
from harness.options import absolute, default_cache
from harness.stored import appendable
from harness.train_commands import OURS, THEIRS, Command, commands
from harness.train_hosts import run_two, two_hosts
from harness.train_jobs import FIRST_LINE, LINES, Ran, run_job, write_job

PARTS = ("start", "log", "end", "hosts")
_ROUNDS = {"start": 20, "log": 3, "end": 1, "hosts": 1}
_QUICK = {"start": 5, "log": 1, "end": 1, "hosts": 1}
_WARM_UP = 2
_BLOCKS = 1600  # of 64 kB in the part `log`: 102 MB in a million lines
_TORCHRUN = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
_MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}

Say = Callable[[str], None]
Times = dict[str, list[Ran]]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; a bad value ends the program with one line and code 2."""
    parser = argparse.ArgumentParser(description="Time `train` beside the existing toolkit.")
    add = parser.add_argument
    add("--part", default=",".join(PARTS), help="several by commas (default: %(default)s)")
    add("--quick", action="store_true", help="5 starts, one round of the others")
    add("--json", action="store_true", help="only the JSON line on stdout, no table")
    add("--output", type=appendable, help="append the JSON line to this file")
    add("--cache", type=absolute, default=default_cache(), help="folder for what is installed")
    options = parser.parse_args(arguments)
    options.part = options.part.split(",")
    for name in options.part:
        if name not in PARTS:
            parser.error(f"--part: {name!r} is none of {', '.join(PARTS)}")
    return options


def in_turns(sides: list[Command], rounds: int, run: Callable[[Command], Ran], *, warm_up: int = 0) -> Times:
    """Each side once a round, in an order that turns, so that both meet the same machine."""
    times: Times = {side.name: [] for side in sides}
    for number in range(warm_up + rounds):
        for side in sides if number % 2 else sides[::-1]:
            ran = run(side)
            if number >= warm_up:
                times[side.name].append(ran)
    return times


def measure(sides: list[Command], part: str, rounds: int, say: Say) -> dict[str, Times]:
    """One part, by configuration."""
    say(f"{part}: {rounds} round{'s' if rounds > 1 else ''} of both")
    if part == "hosts":
        with two_hosts() as (folder, hosts):
            return {"MPI, two hosts": in_turns(sides, rounds, lambda side: run_two(side, folder, hosts))}
    with tempfile.TemporaryDirectory(prefix="train-bench-") as name:
        base = Path(name)
        # The toolkit waits for its own name to resolve.
        write_job(base, FIRST_LINE, _MPI if part == "end" else {}, ["localhost"], "localhost")
        if part == "end":
            return {"MPI, one host": in_turns(sides, rounds, lambda side: run_job(side, base, with_torch=True))}
        if part == "log":
            return measure_log(sides, base, rounds)
        found = {}
        for what, torch in (("without torch", False), ("with torch", True)):
            say(f"start {what}")
            run = functools.partial(run_job, base=base, with_torch=torch)
            found[what] = in_turns(sides, rounds, run, warm_up=_WARM_UP)
        return found


def measure_log(sides: list[Command], base: Path, rounds: int) -> dict[str, Times]:
    """102 MB from one rank, unchanged; and from two, whose lines `train` begins with their names."""
    write_job(base, LINES.format(count=_BLOCKS, above=0), {}, ["localhost"], "localhost")
    found = {"102 MB of lines": in_turns(sides, rounds, lambda side: run_job(side, base, with_torch=False))}
    write_job(base, LINES.format(count=_BLOCKS // 2, above=1), _TORCHRUN, ["localhost"], "localhost")
    found["two ranks, prefixed"] = in_turns(sides, rounds, lambda side: run_job(side, base, with_torch=True))
    return found


# What is read from a run in each part: (name, unit, how).
_FIGURES: dict[str, list[tuple[str, str, Callable[[Ran], float]]]] = {
    "start": [
        ("to the first line", "s", lambda ran: ran.to_first_line),
        ("whole job", "s", lambda ran: ran.whole),
        ("peak memory", "MB", lambda ran: ran.peak_kib * 1024 / 1e6),
    ],
    "log": [
        ("throughput", "MB/s", lambda ran: ran.written / ran.between / 1e6),
        ("peak memory", "MB", lambda ran: ran.peak_kib * 1024 / 1e6),
    ],
    "end": [("after the last line", "s", lambda ran: ran.after_last_line)],
    "hosts": [
        ("to the first line", "s", lambda ran: ran.to_first_line),
        ("after the last line", "s", lambda ran: ran.after_last_line),
    ],
}


def figures(part: str, measured: dict[str, Times]) -> list[dict[str, Any]]:
    """Medians of both sides, and the toolkit's over ours."""
    rows = []
    for configuration, times in measured.items():
        for name, unit, read in _FIGURES[part]:
            values = {side: statistics.median(map(read, ran)) for side, ran in times.items()}
            worst = {side: max(map(read, ran)) for side, ran in times.items()}
            rows.append(
                {
                    "part": part,
                    "configuration": configuration,
                    "figure": name,
                    "unit": unit,
                    "median": {side: round(value, 4) for side, value in values.items()},
                    "max": {side: round(value, 4) for side, value in worst.items()},
                    "rounds": len(times[OURS]),
                    "toolkit_over_train": round(values[THEIRS] / values[OURS], 3),
                }
            )
    return rows


# What issue 4 promises: (part, figure, limit, whether it is an upper one).
_CLAIMS = (
    ("start", "to the first line", 0.10, True),
    ("start", "peak memory", 20.0, True),
    ("log", "throughput", 100.0, False),
    ("log", "peak memory", 20.0, True),
    ("end", "after the last line", 5.0, True),
    ("hosts", "after the last line", 5.0, True),
)


def claims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each promise with its verdict."""
    found = []
    for part, figure, target, at_most in _CLAIMS:
        for row in rows:
            if (row["part"], row["figure"]) == (part, figure):
                value = row["median"][OURS]
                found.append(
                    {
                        "what": f"{figure}, {row['configuration']}",
                        "unit": row["unit"],
                        "target": target,
                        "at_most": at_most,
                        "measured": value,
                        "holds": value <= target if at_most else value >= target,
                    }
                )
    return found


def table(rows: list[dict[str, Any]], stated: list[dict[str, Any]]) -> str:
    """For people."""
    lines = [["", "figure", OURS, THEIRS, f"{THEIRS}/{OURS}"]]
    for row in rows:
        both = [f"{row['median'][side]:.3g} {row['unit']}" for side in (OURS, THEIRS)]
        lines.append([row["configuration"], row["figure"], *both, f"{row['toolkit_over_train']:.3g}"])
    return "\n".join([report.aligned(lines), *map(report.verdict, stated)])


def main() -> int:
    """Exit code 0 when measuring worked, whatever came out."""
    options = parse(sys.argv[1:])
    say = report.progress()
    rounds = _QUICK if options.quick else _ROUNDS
    say("installing both, if they are not there yet (the toolkit: about a minute)")
    sides = commands(Cache(options.cache))
    rows = [row for part in options.part for row in figures(part, measure(sides, part, rounds[part], say))]
    stated = claims(rows)
    machine = {"python": platform.python_version(), "kernel": platform.release()}
    line = {
        "benchmark": "entrypoint",
        "machine": machine,
        "versions": {side.name: side.versions for side in sides},
        "figures": rows,
        "claims": stated,
    }
    report.emit(line, table(rows, stated), options)
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main, (NetworkError, UnavailableError)))
