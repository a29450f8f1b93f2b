#!/usr/bin/env python3
"""Writes a page of results from the JSON lines that collectives.py and ddp.py leave with --output.

    .venv/bin/python benchmarks/results_page.py benchmarks/results/smddp-results.jsonl > docs/smddp-results.md

Each page of docs/ is made of the file of its name in benchmarks/results: there is one for each machine. Lines of the
same layout and operation are put together round by round: a long measurement may be taken in steps.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.claims import Claim, claims_of, waiting_claim
from harness.ddp import NETWORKS
from harness.ddp_page import ddp_claims, ddp_section
from harness.layout import LAYOUTS, layout_named, size_name
from harness.peers import OPERATIONS
from harness.report import markdown
from harness.results import OURS, Cell, cell_from, duration
from harness.stored import each_line

_HEAD = """# Measured results

<!-- Written by benchmarks/results_page.py from the file of this name in benchmarks/results/: do not edit. -->

What is measured, and how, is in [benchmarks/README.md](../benchmarks/README.md), why machines differ in [what the cores
allow](smddp-algorithms.md#what-the-cores-allow). There is a page for [an AMD EPYC](smddp-results.md), one for [an Intel
Xeon](smddp-results-xeon.md), and one for [an EPYC on a slow and restless day](smddp-results-slow.md), when small calls
took two to three times as long as on the first one. Times are medians of one operation; ratios are taken inside rounds,
in which every library had its turn within seconds, and say how many times as long the other takes: above 1, smddp is
faster. Every result was checked against sums in double precision. float32 sums, in place. smddp, gloo, DeepSpeed and
what ends in -torch are called from Python through torch, whose own part of a call is 2.6 µs of an all-reduce on the
first EPYC (a back end that does nothing), about 5 µs on the Xeon and about 14 µs on the slow EPYC (Intel MPI called
through torch, less without); the MPIs without -torch, and oneCCL, are C and C++ programs that call the library alone.
The best peer is the fastest of those called as smddp is, and oneCCL; the best program the fastest of the others: smddp
with Python and torch beside them without. Where a table has a control, it is the same ratio of a second smddp
(smddp-again) to the first: what it differs from 1 by is noise.
"""


class Page:
    """All cells and settings of the given lines."""

    def __init__(self) -> None:
        self.machines: dict[str, dict[str, None]] = {}  # The builds measured on each; in the order in which they come.
        self.cells: dict[tuple[str, str], dict[int, Cell]] = {}
        self.runs: dict[tuple[str, str], dict[str, Any]] = {}
        self.ddp: list[dict[str, Any]] = []

    def add(self, line: dict[str, Any]) -> None:
        machine = _machine_words(line["machine"])
        self.machines.setdefault(machine, {})[line["machine"].get("smddp_build", "unknown")] = None
        if line["benchmark"] == "ddp":
            self.ddp += line["parts"]
            return
        key = (line["layout"], line["operation"])
        cells = self.cells.setdefault(key, {})
        for summary in line["cells"]:
            cell = cell_from(summary)
            cells.setdefault(cell.bytes, Cell(cell.layout, cell.operation, cell.bytes)).rounds += cell.rounds
        run = self.runs.setdefault(key, {"settings": {}, "absent": {}, "failed": {}, "wrong": {}, "waiting": {}})
        for name in ("settings", "absent", "failed", "wrong"):
            run[name].update(line[name])
        run["waiting"].update(line["waiting_share_of_core"])
        run["link"] = line["link_bytes_per_second"]
        if run.setdefault("machine", machine) != machine:
            raise ValueError(f"{' '.join(key)} was measured on another machine, too: give each a page")

    def claims(self, key: tuple[str, str]) -> list[Claim]:
        found = [claim for _, cell in sorted(self.cells[key].items()) for claim in claims_of(cell)]
        waiting = self.runs[key]["waiting"].get(OURS)
        return found + ([waiting_claim(key[0], waiting)] if waiting is not None else [])

    def text(self) -> str:
        parts = [_HEAD]
        for number, (machine, builds) in enumerate(self.machines.items(), 1):
            name = f"Machine {number}" if len(self.machines) > 1 else "Machine"
            parts.append(f"{name}: {machine}. Build of smddp: {', '.join(builds)}.")
        missing = [layout.name for layout in LAYOUTS if (layout.name, "all_reduce") not in self.cells]
        missing += [name for name in OPERATIONS if not any(operation == name for _, operation in self.cells)]
        missing += [f"DDP {name}" for name in NETWORKS if name not in {part["part"] for part in self.ddp}]
        if missing:
            parts.append(f"Not measured by these lines: {', '.join(missing)}.")
        claims = [claim for key in self.cells for claim in self.claims(key)]
        broken = [claim for claim in claims if not claim.holds]
        training = [claim for part in self.ddp for claim in ddp_claims(part)]
        held = len(claims) - len(broken) + sum(claim["holds"] for claim in training)
        parts.append(f"## Where it falls short\n\n{held} of {len(claims) + len(training)} claims hold.")
        if broken:
            parts.append(_claims_table(broken))
        unmet = [claim for claim in training if not claim["holds"]]
        parts += [f"- {claim['what']}: {claim['measured']}, claimed {claim['target']}" for claim in unmet]
        for key in sorted(self.cells, key=_order):
            parts.append(self._section(key))
        parts += [ddp_section(part) for part in self.ddp]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def _section(self, key: tuple[str, str]) -> str:
        layout, operation = key
        cells = [cell for _, cell in sorted(self.cells[key].items())]
        run = self.runs[key]
        sizes = ",".join(_size_word(cell.bytes) for cell in cells)
        lines = [f"## {operation}: {layout_named(layout)[0].words}", ""]
        lines += [f"    benchmarks/collectives.py --layout {layout} --op {operation} --sizes {sizes}", ""]
        if run["link"]:
            lines += [f"Links carried {run['link'] * 8 / 1e9:.3f} Gbit/s of TCP payload each way at once.", ""]
        if len(self.machines) > 1:
            lines += [f"On machine {list(self.machines).index(run['machine']) + 1}.", ""]
        lines += [_times_table(cells), "", _ratios_table(cells), ""]
        for kind in ("absent", "failed", "wrong"):
            lines += [f"- {kind}: {name}: {reason}" for name, reason in sorted(run[kind].items())]
        if run["waiting"]:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in sorted(run["waiting"].items()))
            lines += [f"- A rank that waits for a late one burns of a core: {shares}."]
        lines += [f"- {name}: {text}" for name, text in sorted(run["settings"].items())]
        return "\n".join(lines)


def _machine_words(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}; "
        f"Python {machine['python']}, torch {machine['torch']}, smddp {machine['smddp']}"
    )


def _order(key: tuple[str, str]) -> tuple[int, str, int]:
    operations = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    layout = layout_named(key[0])[0]
    return operations.index(key[1]), layout.link, layout.ranks * 10 + layout.hosts


def _size_word(size: int) -> str:
    return size_name(size).replace(" KiB", "K").replace(" MiB", "M").replace(" B", "")


def _times_table(cells: list[Cell]) -> str:
    peers = sorted(
        {peer for cell in cells for peer in cell.peers()}, key=lambda name: (not name.startswith(OURS), name)
    )
    rows = [["size", *peers, "bound"]]
    for cell in cells:
        times = [cell.seconds(peer) for peer in peers]
        least = min(value for value in times if value is not None)
        shown = [
            "-" if value is None else f"**{duration(value)}**" if value == least else duration(value) for value in times
        ]
        bound = cell.bound()
        rows.append([size_name(cell.bytes), *shown, duration(bound) if bound is not None else "-"])
    return markdown(rows)


def _ratios_table(cells: list[Cell]) -> str:
    ratios = ["gloo / smddp", "Open MPI / smddp", "best peer / smddp", "best program / smddp"]
    rows = [["size", *ratios, "of the bound", "gloo / smddp, CPU", "rounds"]]
    for cell in cells:
        best = cell.best_peer()
        by_best = f"{_number(cell.ratio(best))} ({best})" if best else "-"
        program = cell.best_program()
        by_program = f"{_number(cell.ratio(program))} ({program})" if program else "-"
        rounds = cell.labels() + (
            f"; {len(cell.rounds) - len(cell.used)} left out" if len(cell.rounds) > len(cell.used) else ""
        )
        if cell.disturbed:
            rounds += "; disturbed"
        rows.append(
            [
                size_name(cell.bytes),
                _number(cell.ratio("gloo")),
                _number(cell.ratio("openmpi")),
                by_best,
                by_program,
                _of_bound(cell),
                _number(cell.cpu_ratio("gloo")),
                rounds,
            ]
        )
    return markdown(rows)


def _of_bound(cell: Cell) -> str:
    sums = cell.fraction_with_sums()
    return _number(cell.fraction_of_bound()) + (f" ({_number(sums)} with the sums)" if sums is not None else "")


def _claims_table(claims: list[Claim]) -> str:
    controlled = any(claim.control is not None for claim in claims)
    rows = [["claim", "layout", "operation", "size", "target", "measured"] + (["control"] if controlled else [])]
    for claim in claims:
        sign = "at most" if claim.at_most else "at least"
        size = size_name(claim.bytes) if claim.bytes else "-"
        row = [claim.what, claim.layout, claim.operation, size, f"{sign} {claim.target:g}", f"{claim.measured:.3g}"]
        rows.append(row + ([_number(claim.control)] if controlled else []))
    return markdown(rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def main() -> int:
    """Read the files named on the command line and print the page."""
    parser = argparse.ArgumentParser(description="Print a page of measured results.")
    parser.add_argument("files", nargs="+", metavar="FILE.jsonl", help="what collectives.py and ddp.py left (--output)")
    page = Page()
    try:
        for name in parser.parse_args().files:
            each_line(Path(name), page.add)
        if not page.machines:
            raise ValueError("no results in these files")
    except ValueError as error:
        print(f"benchmarks/results_page.py: {error}", file=sys.stderr)
        return 1
    print(page.text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
