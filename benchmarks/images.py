#!/usr/bin/env python3
"""Sizes of the images that were built here beside what the vendor publishes, and how long builds take: without any
cache, with all of it, after a change in entrypoint/, after one in smddp_core/, after none.

    .venv/bin/python benchmarks/images.py [--rows 2.13-cpu,...] [--skip-cold] [--part size,cold,...]

Builds in a temporary clone of the last commit, under names of its own, and removes both. Ends with one JSON line. See
README.md in this folder.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import machine, program, report
from harness.build import UnavailableError
from harness.image_builds import Clone, changed_files, clone
from harness.stored import appendable

from shoal.errors import ShoalError
from shoal.image.catalogue.baselines import baseline
from shoal.image.catalogue.manifests import Manifest, read
from shoal.image.versions import Versions
from shoal.image.versions_file import load

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("size", "none", "warm", "entrypoint", "smddp_core", "smddp_core_all", "cold")
_DEFAULT_ROW = "2.13-cpu"
_ROUNDS = {"none": 3, "warm": 3, "entrypoint": 3, "smddp_core": 1, "smddp_core_all": 1, "cold": 1}
_QUIET_LIMIT_SECONDS = 15.0

Say = Callable[[str], None]
Figure = dict[str, Any]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; a bad value ends the program with one line and code 2."""
    parser = argparse.ArgumentParser(description="Sizes and build times of images.")
    add = parser.add_argument
    add("--rows", default=_DEFAULT_ROW, help="rows to build, several by commas (default: %(default)s)")
    add("--part", default=",".join(PARTS), help="several by commas (default: %(default)s)")
    add("--skip-cold", action="store_true", help="leave out the part `cold`")
    add(
        "--rounds",
        type=int,
        help="builds of each kind (default: 3, of smddp_core, smddp_core_all and cold 1)",
    )
    add("--json", action="store_true", help="only the JSON line on stdout, no table")
    add("--output", type=appendable, help="append the JSON line to this file")
    options = parser.parse_args(arguments)
    options.rows, options.part = options.rows.split(","), options.part.split(",")
    for name in options.part:
        if name not in PARTS:
            parser.error(f"--part: {name!r} is none of {', '.join(PARTS)}")
    if options.skip_cold:
        options.part = [name for name in options.part if name != "cold"]
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is less than 1")
    return options


def size(versions: Versions, row: str, manifest: Manifest) -> Figure:
    """An image's size, and the vendor's."""
    measured = manifest.measured
    vendor = baseline(versions, measured.torch, measured.device)
    return {
        "part": "size",
        "row": row,
        "image": manifest.names.immutable,
        "device": measured.device,
        "unit": "MB",
        "median": round(manifest.size_bytes / 1e6, 1),
        "vendor": vendor and {"mb": vendor.mb, "of": vendor.of},
        "vendor_over_ours": vendor and round(vendor.mb * 1e6 / manifest.size_bytes, 2),
    }


def sizes(root: Path, versions: Versions) -> list[Figure]:
    """All images of today's rows that have been built in this clone of the repository."""
    paths = {row: root / ".shoal" / f"{row}.json" for row in versions.rows}
    return [size(versions, row, read(path).manifest) for row, path in paths.items() if path.exists()]


def one_build(place: Clone, row: str, part: str) -> float:
    """Seconds of one build of a kind."""
    if part == "cold":
        return place.cold(row)
    if part == "warm":
        place.forget(row)
    elif part != "none":
        place.change(part)
    return place.build(row)[0]


def times(place: Clone, row: str, part: str, rounds: int, say: Say) -> Figure:
    """Builds of one kind, each when the machine is as quiet as it gets."""
    seconds, busy = [], []
    for number in range(rounds):
        busy.append(machine.wait_until_quiet(_QUIET_LIMIT_SECONDS))
        say(f"{row}: {part}: {number + 1} of {rounds}")
        seconds.append(one_build(place, row, part))
    return {
        "part": part,
        "row": row,
        "unit": "s",
        "median": round(statistics.median(seconds), 2),
        "max": round(max(seconds), 2),
        "rounds": rounds,
        "busy_before": round(max(busy), 3),
    }


def measure(options: argparse.Namespace, say: Say) -> list[Figure]:
    """All figures, sizes first."""
    versions = load(ROOT / "versions.yaml")
    for row in options.rows:
        versions.row(row)
    figures = sizes(ROOT, versions) if "size" in options.part else []
    parts = [part for part in PARTS if part in options.part and part != "size"]
    if not parts:
        return figures
    if changed := changed_files(ROOT):
        say(f"what is built is the last commit: {changed} changed files of this tree are not in it")
    with clone(ROOT) as place:
        for row in options.rows:
            say(f"{row}: a build, not timed, so that the others start from the same state")
            _, manifest = place.build(row)
            if "size" in options.part and row not in (figure["row"] for figure in figures):
                figures.append(size(versions, row, Manifest.model_validate(manifest)))
            figures += [times(place, row, part, options.rounds or _ROUNDS[part], say) for part in parts]
    return figures


# What issue 5 promises: (part, which rows, upper limit).
_CLAIMS: tuple[tuple[str, Callable[[Figure], bool], float], ...] = (
    ("size", lambda figure: figure["row"] == "2.13-cpu", 1250.0),
    ("size", lambda figure: figure["device"] == "gpu", 5600.0),
    ("entrypoint", lambda _: True, 10.0),
    ("smddp_core", lambda _: True, 90.0),
    ("smddp_core_all", lambda _: True, 90.0),
    ("none", lambda _: True, 3.0),
)
_WHAT = {
    "size": "size, uncompressed",
    "none": "build after no change",
    "warm": "build, all layers cached",
    "entrypoint": "build after a change in entrypoint/",
    "smddp_core": "build after a change in one file of smddp_core/",
    "smddp_core_all": "build after a change in a header that all of smddp_core/ includes",
    "cold": "build without a cache, wheels fetched",
}


def claims(figures: list[Figure]) -> list[dict[str, Any]]:
    """Each promise with its verdict."""
    return [
        {
            "what": f"{figure['row']}: {_WHAT[part]}",
            "unit": figure["unit"],
            "target": target,
            "at_most": True,
            "measured": figure["median"],
            "holds": figure["median"] <= target,
        }
        for part, concerns, target in _CLAIMS
        for figure in figures
        if figure["part"] == part and concerns(figure)
    ]


def table(figures: list[Figure], stated: list[dict[str, Any]]) -> str:
    """For people."""
    lines = [["row", "figure", "here", "vendor's", "vendor's/ours"]]
    for figure in figures:
        vendor = figure.get("vendor")
        theirs = [f"{vendor['mb']} MB ({vendor['of']})", str(figure["vendor_over_ours"])] if vendor else ["-", "-"]
        lines.append([figure["row"], _WHAT[figure["part"]], f"{figure['median']} {figure['unit']}", *theirs])
    return "\n".join([report.aligned(lines), *map(report.verdict, stated)])


def main() -> int:
    """Exit code 0 when measuring worked, whatever came out."""
    options = parse(sys.argv[1:])
    figures = measure(options, report.progress())
    stated = claims(figures)
    line = {
        "benchmark": "images",
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "figures": figures,
        "claims": stated,
    }
    report.emit(line, table(figures, stated), options)
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main, (ShoalError, UnavailableError), "the clone and its images are removed"))
