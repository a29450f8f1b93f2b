#!/usr/bin/env python3
"""Times training steps under DistributedDataParallel on smddp, gloo and Open MPI, on hosts joined by 1 Gbit/s links.

    .venv/bin/python benchmarks/ddp.py [--quick] [--part seven-layer,resnet18,scaling]

Needs root: the hosts are network namespaces. Ends with one JSON line. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import machine, program, report
from harness.build import Cache, UnavailableError
from harness.ddp import NETWORKS, Network, link_bound, step_bound
from harness.ddp_libraries import LIBRARIES, Library
from harness.ddp_measure import Say, Training
from harness.ddp_page import ddp_claims, ddp_text
from harness.layout import Layout
from harness.network import NetworkError, network
from harness.options import add_common, peers_of, rounds_of, settings_of
from harness.peers import Place

HOSTS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Request:
    """What is to be measured."""

    parts: list[str]
    libraries: list[Library]
    hosts: list[int]
    rounds: int
    wait: float
    cache: Path
    options: dict[str, str]


def parse(arguments: list[str]) -> tuple[argparse.Namespace, Request]:
    """Read the command line; a bad value ends the program with one line and code 2."""
    parser = argparse.ArgumentParser(description="Time DDP's steps on smddp beside other libraries; needs root.")
    add = parser.add_argument
    add("--part", default=",".join(NETWORKS), help="several by commas (default: %(default)s)")
    add("--hosts", default=",".join(map(str, HOSTS)), help="of the part scaling (default: %(default)s)")
    add_common(
        parser,
        LIBRARIES,
        rounds="turns of two steps for each library",
        quick="2 rounds",
        output="append the JSON line to this file",
    )
    options = parser.parse_args(arguments)
    try:
        return options, _request(options)
    except ValueError as error:
        parser.error(str(error))


def _request(options: argparse.Namespace) -> Request:
    parts = options.part.split(",")
    for name in parts:
        if name not in NETWORKS:
            raise ValueError(f"--part: {name!r} is none of {', '.join(NETWORKS)}")
    words = options.hosts.split(",")
    if not all(word.isdigit() and 1 <= int(word) <= 16 for word in words):
        raise ValueError(f"--hosts: {options.hosts!r} is not a list of numbers from 1 to 16")
    # One host first: what more hosts take is compared with it.
    hosts = sorted({1, *(int(word) for word in words)})
    libraries = peers_of(options, LIBRARIES)
    return Request(parts, libraries, hosts, rounds_of(options), options.wait, options.cache, settings_of(options))


def train(request: Request, layout: Layout, model: Network, folder: Path, say: Say, *, exposed: bool) -> dict[str, Any]:
    """All libraries on one network in one layout."""
    # Open MPI's ranks wait without sleeping: eight hosts' worth of them on two cores would measure that alone.
    chosen = request.libraries if exposed else [one for one in request.libraries if one.argument != "mpi"]
    with network(layout, folder) as net:
        rate = machine.goodput(net) if layout.hosts > 1 else 0.0
        training = Training(Place(layout, net, Cache(request.cache), request.options), model, say)
        with training.started(chosen, folder):
            training.measure(request.rounds, 2, wait=request.wait, exposed=exposed)
        return {
            "layout": layout.name,
            "link_bytes_per_second": round(rate),
            "communication_bound_seconds": round(link_bound(model, layout.hosts, rate), 6) if rate else 0.0,
            "step_bound_seconds": round(step_bound(model, layout.hosts, rate or float("inf")), 6),
            "libraries": {name: steps.summary() for name, steps in training.steps.items()},
            "absent": training.absent,
            "failed": training.failed,
            "wrong": training.wrong,
        }


def measure_part(request: Request, part: str, folder: Path, say: Say) -> dict[str, Any]:
    """One network, in the layouts it is for."""
    model = NETWORKS[part]
    if part == "scaling":
        layouts = [Layout(hosts, 1, "1gbit" if hosts > 1 else "") for hosts in request.hosts]
    else:
        layouts = [Layout(2, 2, "1gbit")]
    return {
        "part": part,
        "title": model.title,
        "gradient_bytes": model.gradient_bytes,
        "bucket_megabytes": model.bucket_megabytes,
        "batch": model.batch,
        "slept_seconds": [model.forward_seconds, model.backward_seconds],
        "layouts": [train(request, one, model, folder, say, exposed=part != "scaling") for one in layouts],
    }


def main() -> int:
    """Exit code 0 when measuring worked, whatever came out; 1 when not, or when a library's gradients were wrong."""
    options, request = parse(sys.argv[1:])
    say = report.progress()
    described = machine.description()
    with tempfile.TemporaryDirectory(prefix="smddp-bench-") as folder:
        parts = [measure_part(request, part, Path(folder), say) for part in request.parts]
    claims = [claim for part in parts for claim in ddp_claims(part)]
    line = {"benchmark": "ddp", "machine": described, "parts": parts, "claims": claims}
    report.emit(line, "\n".join([*map(ddp_text, parts), *map(report.verdict, claims)]), options)
    layouts = [layout for part in parts for layout in part["layouts"]]
    measured = any(layout["libraries"] for layout in layouts)
    if not measured:
        program.say(program.NOTHING_MEASURED)
    return 1 if not measured or any(layout["wrong"] for layout in layouts) else 0


if __name__ == "__main__":
    sys.exit(program.run(main, (NetworkError, UnavailableError)))
