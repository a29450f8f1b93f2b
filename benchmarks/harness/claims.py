"""What the library claims about its speed (issue 3, point 4), each as a target and a way to read it from results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.layout import Layout, layout_named, size_name
from harness.results import OURS, OURS_AGAIN, OURS_HALF, Cell

# Two libraries that both fill a link differ by what a round differs from the next: within this they are equal.
EQUAL = 0.02
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Claim:
    """One promise and what came of it."""

    what: str
    layout: str
    operation: str
    bytes: int
    target: float
    measured: float
    at_most: bool = False  # The target is an upper limit.
    tolerance: float = 0.0
    # The same ratio with the control in the other library's place: 1 but for noise.
    control: float | None = None

    @property
    def holds(self) -> bool:
        if self.at_most:
            return self.measured <= self.target * (1 + self.tolerance)
        return self.measured >= self.target * (1 - self.tolerance)

    @property
    def words(self) -> str:
        where = f"{self.layout} {self.operation} {size_name(self.bytes)}" if self.bytes else self.layout
        return f"{where}: {self.what}"

    def summary(self) -> dict[str, Any]:
        control = {} if self.control is None else {"control": float(f"{self.control:.4g}")}
        return {
            "what": self.what,
            "layout": self.layout,
            "operation": self.operation,
            "bytes": self.bytes,
            "target": self.target,
            "at_most": self.at_most,
            "tolerance": self.tolerance,
            "measured": float(f"{self.measured:.4g}"),
            "holds": self.holds,
            **control,
        }


def claims_of(cell: Cell) -> list[Claim]:
    """The claims that this cell can decide; one whose peers were absent is not decided."""
    (layout,) = layout_named(cell.layout)
    return [claim for reader in _READERS for claim in reader(cell, layout)]


def _claim(cell: Cell, what: str, target: float, measured: float | None, **more: Any) -> Iterator[Claim]:
    if measured is not None:
        yield Claim(what, cell.layout, cell.operation, cell.bytes, target, measured, **more)


def _ratio(cell: Cell, peer: str, target: float, ours: str = OURS) -> Iterator[Claim]:
    control = cell.ratio(OURS_AGAIN) if ours == OURS else None
    yield from _claim(cell, f"{peer} / {ours}, time", target, cell.ratio(peer, ours), control=control)


def _open_mpi(cell: Cell, target: float) -> Iterator[Claim]:
    """Of the two settings of Open MPI the one that is faster here counts."""
    timed = [(cell.seconds(name) or math.inf, name) for name in ("openmpi", "openmpi-sagemaker")]
    seconds, name = min(timed)
    if seconds < math.inf:
        yield from _ratio(cell, name, target)


def _never_slower(cell: Cell, layout: Layout) -> Iterator[Claim]:
    """Any operation; inside one host all-reduces from 64 KiB up."""
    if cell.operation == "all_reduce" and layout.hosts == 1 and cell.bytes < 64 * KIB:
        return
    best = cell.best_peer()
    if best:
        what = f"best peer ({best}) / smddp, time"
        yield from _claim(cell, what, 1.0, cell.ratio(best), tolerance=EQUAL, control=cell.ratio(OURS_AGAIN))


def _cpu(cell: Cell, _layout: Layout) -> Iterator[Claim]:
    what, control = "gloo / smddp, CPU seconds a byte", cell.cpu_ratio(OURS_AGAIN)
    yield from _claim(cell, what, 1.0, cell.cpu_ratio("gloo"), tolerance=EQUAL, control=control)


def _one_host(cell: Cell, layout: Layout) -> Iterator[Claim]:
    if cell.operation != "all_reduce" or layout.hosts > 1:
        return
    best = cell.best_peer(without=("gloo",))
    if cell.bytes in (16 * MIB, 128 * MIB):
        yield from _ratio(cell, "gloo", 6)
        if best:
            what = f"best of MPIs, oneCCL, DeepSpeed ({best}) / smddp, time"
            yield from _claim(cell, what, 2, cell.ratio(best), control=cell.ratio(OURS_AGAIN))
    if cell.bytes == 128 * MIB:
        yield from _open_mpi(cell, 4)
        yield from _claim(cell, "part of what memory bandwidth allows", 0.6, cell.fraction_of_bound())
    if cell.bytes == 4 * KIB:
        yield from _ratio(cell, "gloo", 100)
        if layout.ranks == 2:
            seconds = cell.seconds(OURS)
            yield from _claim(cell, "microseconds", 10, seconds and seconds * 1e6, at_most=True)


def _one_rank_a_host(cell: Cell, layout: Layout) -> Iterator[Claim]:
    if cell.operation != "all_reduce" or layout.hosts == 1 or layout.ranks_per_host > 1:
        return
    if cell.bytes == 4 * KIB:
        yield from _ratio(cell, "gloo", 10)
    if cell.bytes >= 4 * MIB:
        yield from _claim(cell, "part of what the link allows", 0.95, cell.fraction_of_bound())


def _two_by_two(cell: Cell, _layout: Layout) -> Iterator[Claim]:
    if (cell.operation, cell.layout, cell.bytes) != ("all_reduce", "2x2@1gbit", 128 * MIB):
        return
    yield from _ratio(cell, "gloo", 1.45)
    # With shared memory as it comes. As SageMaker starts it, Open MPI takes 1.4 times as long as the link itself needs.
    yield from _ratio(cell, "openmpi", 1.6)
    yield from _claim(cell, "part of what the link allows", 0.93, cell.fraction_of_bound())
    yield from _ratio(cell, "gloo", 2.6, OURS_HALF)


_READERS: tuple[Callable[[Cell, Layout], Iterator[Claim]], ...] = (
    _one_host,
    _one_rank_a_host,
    _two_by_two,
    _never_slower,
    _cpu,
)


def waiting_claim(layout: str, share: float) -> Claim:
    """Ranks that wait sleep: of a core, a waiting rank uses at most a tenth."""
    return Claim("share of a core that a waiting rank burns", layout, "all_reduce", 0, 0.1, share, at_most=True)
