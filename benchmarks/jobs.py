#!/usr/bin/env python3
"""Times a trivial job of two hosts from the start of the command to its exit: `shoal run`, and local mode of the SDK of
SageMaker (generation 2) with the same script on the same image.

    .venv/bin/python benchmarks/jobs.py [--quick] [--job plain,torchrun,mpi] [--image TAG]

Needs a Docker engine with the image, and docker-compose. Ends with one JSON line. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import machine, program, report
from harness.build import Cache, UnavailableError
from harness.options import absolute, add_wait, default_cache
from harness.stored import appendable
from harness.two_hosts import (
    JOBS,
    Job,
    Ran,
    by_sdk,
    by_shoal,
    network_as_it_was,
    new_folder,
    sdk_environment,
    write_source,
)

OURS, THEIRS, FIT = "shoal run", "SDK", "SDK, fit alone"
_IMAGE = "pytorch-training:2.13.0-cpu-py311-debian12-sagemaker"
_ROUNDS, _QUICK = 7, 5
_WARM_UP = 1
_TARGET_SECONDS = 6.0  # issue 7, point 7

Say = Callable[[str], None]
Run = Callable[[Job, Path], Ran]
Figure = dict[str, Any]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; a bad value ends the program with one line and code 2."""
    parser = argparse.ArgumentParser(description="Time trivial jobs of two hosts.")
    add = parser.add_argument
    names = [job.name for job in JOBS]
    add("--job", default=",".join(names), help="several by commas (default: %(default)s)")
    add("--image", default=_IMAGE, help="an image of the engine (default: %(default)s)")
    add("--rounds", type=int, help=f"of both sides (default: {_ROUNDS})")
    add("--quick", action="store_true", help=f"{_QUICK} rounds")
    add_wait(parser)
    add("--json", action="store_true", help="only the JSON line on stdout, no table")
    add("--output", type=appendable, help="append the JSON line to this file")
    add("--cache", type=absolute, default=default_cache(), help="folder for what is installed")
    options = parser.parse_args(arguments)
    for name in options.job.split(","):
        if name not in names:
            parser.error(f"--job: {name!r} is none of {', '.join(names)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is less than 1")
    options.job = [job for job in JOBS if job.name in options.job.split(",")]
    options.rounds = options.rounds or (_QUICK if options.quick else _ROUNDS)
    return options


def in_turns(
    job: Job, sides: Mapping[str, Run], rounds: int, before: Callable[[str], float]
) -> tuple[dict[str, list[Ran]], float]:
    """Each side once a round, in an order that turns, after rounds that are not counted: both meet the same machine.

    Return also the most of the machine that others used before a run.
    """
    times: dict[str, list[Ran]] = {name: [] for name in sides}
    busy = 0.0
    with tempfile.TemporaryDirectory(prefix="jobs-bench-") as base:
        for number in range(_WARM_UP + rounds):
            what = f"round {number - _WARM_UP + 1} of {rounds}" if number >= _WARM_UP else "warm-up"
            for name in list(sides) if number % 2 else list(sides)[::-1]:
                share = before(f"{job.name}: {what}: {name}")
                folder = new_folder(Path(base))
                write_source(job, folder)
                ran = sides[name](job, folder)
                if number >= _WARM_UP:
                    times[name].append(ran)
                    busy = max(busy, share)
    return times, busy


def figure(job: Job, times: dict[str, list[Ran]], busy: float) -> Figure:
    """Medians and extremes of a job, and the SDK's over ours, taken within each round."""
    values = {OURS: [ran.whole for ran in times[OURS]], THEIRS: [ran.whole for ran in times[THEIRS]]}
    values[FIT] = [ran.fit for ran in times[THEIRS] if ran.fit is not None]
    over = {
        side: [theirs / ours for theirs, ours in zip(values[side], values[OURS], strict=True)] for side in (THEIRS, FIT)
    }
    return {
        "job": job.name,
        "unit": "s",
        "median": {side: round(statistics.median(seconds), 2) for side, seconds in values.items()},
        "min": {side: round(min(seconds), 2) for side, seconds in values.items()},
        "max": {side: round(max(seconds), 2) for side, seconds in values.items()},
        "rounds": len(times[OURS]),
        "sdk_over_shoal": {side: round(statistics.median(ratios), 2) for side, ratios in over.items()},
        "busy_before": round(busy, 3),
    }


def claims(figures: list[Figure]) -> list[dict[str, Any]]:
    """The promise about each job with its verdict."""
    return [
        {
            "what": f"two hosts, {one['job']}, from `shoal run` to exit",
            "unit": "s",
            "target": _TARGET_SECONDS,
            "at_most": True,
            "measured": one["median"][OURS],
            "holds": one["median"][OURS] <= _TARGET_SECONDS,
        }
        for one in figures
    ]


def table(figures: list[Figure], stated: list[dict[str, Any]]) -> str:
    """For people."""
    lines = [["job", OURS, THEIRS, FIT, f"{THEIRS}/{OURS}", "busy before"]]
    for one in figures:
        seconds = [f"{one['median'][side]:.2f} s" for side in (OURS, THEIRS, FIT)]
        lines.append([one["job"], *seconds, f"{one['sdk_over_shoal'][THEIRS]:.2f}", f"{one['busy_before']:.0%}"])
    return "\n".join([report.aligned(lines), *map(report.verdict, stated)])


def measure(options: argparse.Namespace, say: Say) -> list[Figure]:
    """All jobs, one after another."""
    say("installing the SDK, if it is not there yet (half a minute)")
    python = sdk_environment(Cache(options.cache))
    sides: Mapping[str, Run] = {
        OURS: lambda job, folder: by_shoal(job, options.image, folder),
        THEIRS: lambda job, folder: by_sdk(job, options.image, folder, python),
    }

    def before(what: str) -> float:
        say(what)
        return machine.wait_until_quiet(options.wait)

    with network_as_it_was():
        return [figure(job, *in_turns(job, sides, options.rounds, before)) for job in options.job]


def main() -> int:
    """Exit code 0 when measuring worked, whatever came out."""
    options = parse(sys.argv[1:])
    figures = measure(options, report.progress())
    stated = claims(figures)
    line = {
        "benchmark": "jobs",
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load_average": round(os.getloadavg()[2], 1),
        },
        "image": options.image,
        "figures": figures,
        "claims": stated,
    }
    report.emit(line, table(figures, stated), options)
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main, (UnavailableError,), "containers of an SDK's job may be left: docker ps -a"))
