"""How results are shown: progress on stderr, a table for people, one JSON line for programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from harness.claims import Claim
from harness.layout import size_name
from harness.results import OURS, Cell, duration


def progress() -> Callable[[str], None]:
    """A function that says what is going on: one changing line on a terminal, one line each elsewhere."""
    if sys.stderr.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            status = Console(stderr=True).status("starting")
            status.start()
            return lambda text: status.update(text.replace("[", "\\["))
    return lambda text: print(text, file=sys.stderr, flush=True)


def table(cells: list[Cell]) -> str:
    """Times of all libraries, sizes downwards; what is best in a row is marked."""
    peers = sorted({peer for cell in cells for peer in cell.peers()}, key=_order)
    head = [
        "size",
        *peers,
        "bound",
        "of bound",
        "and sums",
        "best peer/smddp",
        "program/smddp",
        "gloo/smddp",
        "gloo/smddp CPU",
        "caches",
    ]
    rows = [head]
    for cell in cells:
        times = {peer: cell.seconds(peer) for peer in peers}
        fastest = min((value for value in times.values() if value is not None), default=0.0)
        best = cell.best_peer()
        program = cell.best_program()
        row = [size_name(cell.bytes)]
        for value in times.values():
            row.append("-" if value is None else duration(value) + ("*" if value == fastest else ""))
        bound = cell.bound()
        row += ["-" if bound is None else duration(bound), _number(cell.fraction_of_bound())]
        row += [_number(cell.fraction_with_sums())]
        row += [
            _number(cell.ratio(best)) if best else "-",
            _number(cell.ratio(program)) if program else "-",
            _number(cell.ratio("gloo")),
            _number(cell.cpu_ratio("gloo")),
        ]
        rows.append([*row, cell.labels() + (" (disturbed)" if cell.disturbed else "")])
    return aligned(rows)


def _order(peer: str) -> tuple[bool, str]:
    return (not peer.startswith(OURS), peer)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)) for row in rows)


def markdown(rows: list[list[str]]) -> str:
    """A table whose first row is its head."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in body])


def verdict(claim: Mapping[str, Any]) -> str:
    """One claim of a JSON line, in words: whether it holds, what, the measured value, the target."""
    unit = f" {claim['unit']}" if "unit" in claim else ""
    target = f"target {'<=' if claim.get('at_most') else '>='} {claim['target']:g}"
    holds = "holds" if claim["holds"] else "DOES NOT HOLD"
    between = "; 95 %: {:.4g} to {:.4g}".format(*claim["interval"]) if "interval" in claim else ""
    control = "; control {:.3g}".format(claim["control"]) if "control" in claim else ""
    return f"{holds}: {claim['what']}: {claim['measured']:.5g}{unit} ({target}{between}{control})"


def emit(line: Mapping[str, Any], text: str, options: argparse.Namespace) -> None:
    """End a benchmark's output: `text` unless --json, then `line`, which --output appends to a file as well."""
    if not options.json:
        print(text)
    # First where it cannot fail.
    print(json.dumps(line))
    if options.output:
        with options.output.open("a") as file:
            print(json.dumps(line), file=file)


def claims_text(claims: list[Claim]) -> str:
    """The claims that do not hold first."""
    lines = [
        verdict({**claim.summary(), "what": claim.words}) for claim in sorted(claims, key=lambda claim: claim.holds)
    ]
    held = sum(claim.holds for claim in claims)
    return "\n".join([f"{held} of {len(claims)} claims hold", *lines])
