"""The text of smp.explain: an aligned table of modules, the load of each rank, warnings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from torch import nn

from .draw import heading
from .records import Trace
from .schedule import Schedule
from .trace import empty_trace
from .tree import Tree


@dataclass(frozen=True)
class Row:
    """A module. parameter_bytes, memory, compute and cost count all that is inside it, costs as fractions of the model.

    part: the module that it is placed with; calls: None without a trace.
    """

    name: str
    type_name: str
    rank: int
    part: str
    calls: int | None
    parameter_bytes: int
    memory: float
    compute: float
    cost: float


def rows_of(module: nn.Module, trace: Trace | None, tree: Tree, ranks: Mapping[str, int]) -> list[Row]:
    """A row for each name of `named_modules()`, in that order."""
    records = trace or empty_trace(module)
    whole_memory = sum(tree.memory.values()) or 1.0
    whole_compute = sum(tree.compute.values()) or 1.0
    rows = []
    for name, record in records.modules.items():
        inside = [key for key in records.modules if _within(key, name)]
        parts = [part for part in inside if part in tree.cost]
        rows.append(
            Row(
                name,
                record.type_name,
                ranks[name],
                tree.anchor[name],
                record.calls if trace else None,
                sum(records.modules[key].parameter_bytes for key in inside),
                sum(tree.memory[part] for part in parts) / whole_memory,
                sum(tree.compute[part] for part in parts) / whole_compute,
                sum(tree.cost[part] for part in parts),
            )
        )
    return rows


def table(rows: list[Row], warnings: list[str], schedule: Schedule, traced: bool) -> str:
    """The whole text."""
    shown = _shown(rows)
    lines = [["module", "rank", "parameters", "memory", "compute", "cost"]]
    for row, count, depth in shown:
        label = "  " * depth + (row.name.rpartition(".")[2] or "(model)")
        if count > 1:
            last = int(label.strip()) + count - 1
            label = f"{label} .. {last}  {count} x {row.type_name}"
        else:
            label = f"{label}  {row.type_name}"
        ranks = _ranks_inside(rows, row)
        figures = [f"{each * count:.1%}" for each in (row.memory, row.compute, row.cost)]
        lines.append([label, ranks, _bytes(row.parameter_bytes * count), *figures])
    text = _aligned(lines)
    text += ["", *_aligned(_loads(rows, schedule))]
    text += ["", heading(schedule)]
    if not traced:
        text.append("not traced: weighed by parameters, in the order of declaration; give run= for operations")
    text += [f"! {warning}" for warning in warnings]
    return "\n".join(text)


def _within(name: str, outer: str) -> bool:
    return not outer or name == outer or name.startswith(f"{outer}.")


def _ranks_inside(rows: list[Row], row: Row) -> str:
    held = sorted({each.rank for each in rows if _within(each.name, row.name)})
    if len(held) == 1:
        return str(held[0])
    run = len(held) > 2 and held[-1] - held[0] == len(held) - 1
    return f"{row.rank} ({held[0]}-{held[-1]})" if run else f"{row.rank} ({','.join(map(str, held))})"


def _shown(rows: list[Row]) -> list[tuple[Row, int, int]]:
    """Rows to print: nothing inside a module that is wholly on one rank; equal neighbours of a list as one."""
    children: dict[str, list[Row]] = {}
    for row in rows:
        if row.name:
            children.setdefault(row.name.rpartition(".")[0], []).append(row)
    found: list[tuple[Row, int, int]] = []

    def visit(row: Row, depth: int) -> None:
        found.append((row, 1, depth))
        if depth and " " not in _ranks_inside(rows, row):
            return
        for child in children.get(row.name, []):
            if _joins(rows, found, child, depth + 1):
                before, count, _ = found[-1]
                found[-1] = (before, count + 1, depth + 1)
            else:
                visit(child, depth + 1)

    visit(rows[0], 0)
    return found


def _joins(rows: list[Row], found: list[tuple[Row, int, int]], row: Row, depth: int) -> bool:
    before, count, depth_before = found[-1]
    first, key = before.name.rpartition("."), row.name.rpartition(".")
    return (
        depth == depth_before
        and first[0] == key[0]
        and first[2].isdigit()
        and key[2].isdigit()
        and int(key[2]) == int(first[2]) + count
        and (before.type_name, before.parameter_bytes) == (row.type_name, row.parameter_bytes)
        and _ranks_inside(rows, before) == _ranks_inside(rows, row)
        and " " not in _ranks_inside(rows, row)
    )


def _loads(rows: list[Row], schedule: Schedule) -> list[list[str]]:
    whole = rows[0]
    lines = [["rank", "parameters", "memory", "compute", "cost", "busy"]]
    for rank in range(schedule.ranks):
        own = [_own(rows, row) for row in rows if row.rank == rank and row.part == row.name]
        sums = [sum(each[index] for each in own) for index in range(4)]
        share = schedule.busy(rank) / schedule.length if schedule.length else 0.0
        lines.append([str(rank), _bytes(sums[0]), *(f"{each:.1%}" for each in sums[1:]), f"{share:.0%}"])
    lines.append(["all", _bytes(whole.parameter_bytes), "", "", "", f"{1 - schedule.bubble:.0%}"])
    return lines


def _own(rows: list[Row], row: Row) -> tuple[float, float, float, float]:
    inside = [each for each in rows if each.name and each.name.rpartition(".")[0] == row.name and each is not row]
    return (
        row.parameter_bytes - sum(each.parameter_bytes for each in inside),
        row.memory - sum(each.memory for each in inside),
        row.compute - sum(each.compute for each in inside),
        row.cost - sum(each.cost for each in inside),
    )


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in cells).rstrip()
        for cells in (list(enumerate(zip(line, widths))) for line in lines)
    ]
