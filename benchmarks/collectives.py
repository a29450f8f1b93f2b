#!/usr/bin/env python3
"""Times smddp's collectives beside gloo, Open MPI, MPICH, Intel MPI, oneCCL and DeepSpeed, all in one run.

    .venv/bin/python benchmarks/collectives.py [--quick] [--layout 1x2,2x1@1gbit] [--op all_reduce] [--sizes 4K,128M]

Ends with one JSON line: medians, ratios, parts of the bound, and each claim with target, measured value and verdict.
See README.md in this folder for what is measured and how.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import machine, program, report
from harness.build import Cache, UnavailableError
from harness.catalogue import PEERS
from harness.claims import Claim, claims_of, waiting_claim
from harness.layout import LAYOUTS, Layout, bytes_of, layout_named
from harness.measure import Effort, Field, Say
from harness.network import NetworkError, network
from harness.options import add_common, peers_of, rounds_of, settings_of
from harness.peers import OPERATIONS, Peer, Place
from harness.results import Cell
from harness.stored import Done, each_line

SIZES = "4K,16K,64K,256K,1M,4M,16M,128M"
QUICK_SIZES = "4K,64K,1M,16M"
QUICK_LAYOUTS = "1x2,2x1@1gbit,2x2@1gbit"


@dataclass(frozen=True)
class Request:
    """What is to be measured."""

    layouts: list[Layout]
    operations: list[str]
    sizes: list[int]
    peers: list[Peer]
    effort: Effort
    cache: Path
    options: dict[str, str]
    done: Done = field(default_factory=Done)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, Request]:
    """Read the command line; a bad value ends the program with one line and code 2."""
    parser = argparse.ArgumentParser(description="Time smddp's collectives beside other libraries.")
    add = parser.add_argument
    names = ",".join(one.name for one in LAYOUTS)
    add("--layout", help=f"HOSTSxRANKS[@LINK], several by commas (default: {names}); several hosts need root")
    add("--op", default="all_reduce", help=f"{', '.join(OPERATIONS)}, several by commas, or all (default: %(default)s)")
    add("--sizes", help=f"bytes of a message, K and M for KiB and MiB (default: {SIZES})")
    resume = "with --output: leave out sizes of which that file has as many rounds of this build as --rounds asks for"
    add("--resume", action="store_true", help=resume)
    add_common(
        parser,
        PEERS,
        rounds="how often each library has its turn at each size",
        quick=f"less: {QUICK_LAYOUTS}, {QUICK_SIZES}, 2 rounds",
        output="append one JSON line a layout and operation to this file as soon as it is done",
    )
    options = parser.parse_args(arguments)
    try:
        return options, _request(options)
    except ValueError as error:
        parser.error(str(error))


def _request(options: argparse.Namespace) -> Request:
    quick = options.quick
    layouts = options.layout or (QUICK_LAYOUTS if quick else ",".join(one.name for one in LAYOUTS))
    operations = list(OPERATIONS) if options.op == "all" else options.op.split(",")
    for name in operations:
        if name not in OPERATIONS:
            raise ValueError(f"--op: {name!r} is none of {', '.join(OPERATIONS)}, all")
    if options.resume and not options.output:
        raise ValueError("--resume needs --output FILE, whose lines say what is done")
    done = Done()
    if options.resume and options.output.exists():
        try:
            each_line(options.output, done.add)
        except ValueError as error:
            raise ValueError(f"--resume: {error}") from error
    return Request(
        [layout for name in layouts.split(",") for layout in layout_named(name)],
        operations,
        [bytes_of(word) for word in (options.sizes or (QUICK_SIZES if quick else SIZES)).split(",")],
        peers_of(options, PEERS),
        Effort(rounds_of(options), 0.1 if quick else 0.3, options.wait),
        options.cache,
        settings_of(options),
        done,
    )


def measure(
    request: Request, layout: Layout, operation: str, sizes: list[int], folder: Path, say: Say
) -> tuple[dict[str, Any], KeyboardInterrupt | None]:
    """One layout and operation: the JSON object of its line, with the cells themselves under ``cells``, and what
    stopped it, if that came after a round."""
    cache = Cache(request.cache)
    with network(layout, folder) as net:
        links = machine.Links(net, layout)
        link_rate = links.bytes_per_second()
        started = machine.caches(cache)
        field = Field(Place(layout, net, cache, request.options), say)
        cells = [Cell(layout.name, operation, size) for size in sizes]
        waiting: dict[str, float] = {}
        stop: KeyboardInterrupt | None = None
        try:
            with field.started(request.peers, operation, folder):
                field.fill(cells, request.effort, links)
                waiting = field.waiting_shares() if operation == "all_reduce" else {}
        except KeyboardInterrupt as error:
            if not any(cell.rounds for cell in cells):
                raise
            stop = error  # What was measured by now is worth keeping.
        return {
            "layout": layout.name,
            "operation": operation,
            "interrupted": stop is not None,
            "link_bytes_per_second": round(link_rate),
            "congestion_control": net.congestion_control,
            "caches_at_start": started.label,
            "settings": field.settings,
            "absent": field.absent,
            "failed": field.failed,
            "wrong": field.wrong,
            "waiting_share_of_core": {name: round(share, 3) for name, share in waiting.items()},
            "cells": [cell.summary() for cell in cells if cell.rounds],
            "claims": [claim.summary() for claim in run_claims(cells, waiting, layout)],
        }, stop


def run_claims(cells: list[Cell], waiting: dict[str, float], layout: Layout) -> list[Claim]:
    """All claims that one layout and operation decides."""
    claims = [claim for cell in cells if cell.rounds for claim in claims_of(cell)]
    if "smddp" in waiting:
        claims.append(waiting_claim(layout.name, waiting["smddp"]))
    return claims


def sizes_left(request: Request, layout: Layout, operation: str, build: str) -> list[int]:
    """The sizes of which there are not yet all rounds from this build of the library."""

    def done(size: int) -> int:
        return request.done.rounds(build, layout.name, operation, size)

    return [size for size in request.sizes if done(size) < request.effort.rounds]


def show(run: dict[str, Any], described: dict[str, object]) -> None:
    """Tables and claims of one run, for people."""
    from harness.results import cell_from

    layout = layout_named(run["layout"])[0]
    print(
        f"\n{run['operation']}, {layout.words} ({run['layout']}), float32 sums in place; {described['cpu']}, ", end=""
    )
    print(f"{described['cores']} cores, torch {described['torch']}, smddp {described['smddp']}")
    if run["link_bytes_per_second"]:
        print(f"link: {run['link_bytes_per_second'] * 8 / 1e9:.3f} Gbit/s of TCP payload each way at once")
    cells = [cell_from(cell) for cell in run["cells"]]
    if cells:
        print(report.table(cells))
    for kind in ("absent", "failed", "wrong"):
        for name, reason in run[kind].items():
            print(f"{kind}: {name}: {reason}")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in run["waiting_share_of_core"].items())
    if shares:
        print(f"a waiting rank burns of a core: {shares}")
    print(report.claims_text(run_claims(cells, run["waiting_share_of_core"], layout)))


def exit_code(runs: list[dict[str, Any]]) -> int:
    """0 when something was measured, or nothing was left to, and no library's results were wrong."""
    measured = not runs or any(run["cells"] for run in runs)
    return 0 if measured and not any(run["wrong"] for run in runs) else 1


def main() -> int:
    """Exit code 0 when measuring worked, whatever the claims say; 1 when not, or when a library's sums were wrong."""
    options, request = parse(sys.argv[1:])
    say = report.progress()
    runs: list[dict[str, Any]] = []
    described = machine.description()
    build = str(described["smddp_build"])
    with tempfile.TemporaryDirectory(prefix="smddp-bench-") as folder:
        for layout, operation in itertools.product(request.layouts, request.operations):
            sizes = sizes_left(request, layout, operation, build)
            if not sizes:
                continue
            run, stop = measure(request, layout, operation, sizes, Path(folder), say)
            runs.append(run)
            if options.output:
                line = {"benchmark": "collectives", "machine": described, **run}
                with options.output.open("a") as file:
                    print(json.dumps(line), file=file)
            if not options.json:
                show(run, described)
            if stop:
                raise stop
    claims = [claim for run in runs for claim in run["claims"]]
    print(json.dumps({"benchmark": "collectives", "machine": described, "runs": runs, "claims": claims}))
    if not runs:
        program.say(f"nothing is left to measure: {options.output} has all rounds of this build")
    elif not any(run["cells"] for run in runs):
        program.say(program.NOTHING_MEASURED)
    return exit_code(runs)


if __name__ == "__main__":
    sys.exit(program.run(main, (NetworkError, UnavailableError)))
