#!/usr/bin/env python3
"""Times pipelines of `smdistributed.modelparallel` beside the schedules of torch.distributed.pipelining.

    .venv/bin/python benchmarks/pipeline.py [--quick] [--part sleep,compute,memory,hop]

Ends with one JSON line. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import pipeline, program, report
from harness.build import UnavailableError
from harness.measure import WrongResultError
from harness.pipeline import Case, Sides
from harness.pipeline_page import Row, claims, steps_row, text
from harness.stored import appendable

Say = Callable[[str], None]
PARTS = ("sleep", "compute", "memory", "hop")
_HOPS = 300


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; a bad value ends the program with one line and code 2."""
    parser = argparse.ArgumentParser(description="Time smp's pipelines beside those of torch.")
    add = parser.add_argument
    add("--part", default=",".join(PARTS), help="several by commas (default: %(default)s)")
    add("--ranks", default="2,4", help="of the part sleep (default: %(default)s)")
    add("--microbatches", default="8,16", help="of the part sleep (default: %(default)s)")
    add("--rounds", type=int, help="turns of all sides (default: 15)")
    add("--quick", action="store_true", help="3 rounds; sleep: 2 ranks, 8 micro-batches")
    add("--json", action="store_true", help="only the JSON line on stdout, no tables")
    add("--output", type=appendable, help="append the JSON line to this file")
    options = parser.parse_args(arguments)
    options.part = options.part.split(",")
    for name in options.part:
        if name not in PARTS:
            parser.error(f"--part: {name!r} is none of {', '.join(PARTS)}")
    for name in ("ranks", "microbatches"):
        words = getattr(options, name).split(",")
        if not all(word.isdigit() and int(word) >= 2 for word in words):
            parser.error(f"--{name}: {getattr(options, name)!r} is not a list of numbers from 2")
        setattr(options, name, [int(word) for word in words][: 1 if options.quick else None])
    options.rounds = options.rounds or (3 if options.quick else 15)
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is less than 1")
    return options


def cases(options: argparse.Namespace) -> list[Case]:
    """What was asked for."""
    found = []
    if "sleep" in options.part:
        found += [pipeline.sleep_case(ranks, count) for ranks in options.ranks for count in options.microbatches]
    if "compute" in options.part:
        found.append(pipeline.compute_case(8))
    if "memory" in options.part:
        found.append(pipeline.memory_case())
    if "hop" in options.part:
        found.append(pipeline.hop_case())
    return found


def measure(case: Case, rounds: int, say: Say) -> Row:
    """Start a case's sides, measure them in turns, end them."""
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as folder:
        sides = Sides(case, Path(folder), say)
        try:
            if case.part == "hop":
                return _hops(sides, rounds)
            if case.part == "memory":
                sides.warm_up(3)
                peaks = {side.name: [int(peak[0]) for peak in sides.ask(side.name, "peak")] for side in case.sides}
                return {"case": case.name, "part": "memory", "peak_bytes": peaks}
            sides.warm_up(3)
            return steps_row(case, sides.rounds(rounds, 1 if case.part == "sleep" else 3, say))
        finally:
            sides.close()


def _hops(sides: Sides, rounds: int) -> Row:
    sides.ask("smp", f"hops {_HOPS}")
    answers = [sides.ask("smp", f"hops {_HOPS}")[0] for _ in range(rounds)]
    ways = zip(("forward", "backward"), zip(*answers, strict=True), strict=True)
    times = {way: [round(value * 1e3, 4) for value in values] for way, values in ways}
    return {"case": sides.case.name, "part": "hop", "milliseconds": times}


def main() -> int:
    """Exit code 0 when measuring worked, whatever came out."""
    options = parse(sys.argv[1:])
    say = report.progress()
    rows = [measure(case, options.rounds, say) for case in cases(options)]
    stated = claims(rows)
    machine = {"python": platform.python_version(), "kernel": platform.release(), "torch": version("torch")}
    line = {"benchmark": "pipeline", "machine": machine, "rows": rows, "claims": stated}
    report.emit(line, text(rows, stated), options)
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main, (UnavailableError, WrongResultError)))
