"""What was measured, as data: rounds, and what follows from them. No effects; the same from a run and from a file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.layout import size_name

OURS = "smddp"
OURS_HALF = "smddp-bf16"
# The control: smddp once more, in processes of its own. What it differs from smddp by is noise.
OURS_AGAIN = "smddp-again"
_OURS = (OURS, OURS_HALF, OURS_AGAIN)
# The end of the name of a library that is C or C++, where it was reached through torch.
THROUGH_TORCH = "-torch"
# Those that were not.
PROGRAMS = ("openmpi", "openmpi-sagemaker", "mpich", "intelmpi", "oneccl")
_BUSY_LIMIT = 0.05
# Smaller messages are bound by latency, not by bandwidth.
_BOUND_FROM = 1 << 20


@dataclass
class Round:
    """Every library once at one size."""

    c2c_nanoseconds: list[float] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    busy: float = 0.0  # Share of the machine that others used before the round.
    seconds: dict[str, float] = field(default_factory=dict)  # Of one operation.
    cpu_seconds: dict[str, float] = field(default_factory=dict)  # Of one operation, over all ranks.
    bound_seconds: float = 0.0
    # What has to be added up takes so long by itself, where it delays what is moved: cores are the limit of both.
    sum_seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """The cores stayed where they were, and nobody else was at work."""
        return len(set(self.labels)) == 1 and self.busy < _BUSY_LIMIT

    @property
    def label(self) -> str:
        return self.labels[0] if len(set(self.labels)) == 1 else "mixed"


@dataclass
class Cell:
    """One operation at one size in one layout."""

    layout: str
    operation: str
    bytes: int
    rounds: list[Round] = field(default_factory=list)

    @property
    def used(self) -> list[Round]:
        """The rounds that count: the kept ones, or all when none could be kept."""
        return [one for one in self.rounds if one.kept] or self.rounds

    @property
    def disturbed(self) -> bool:
        """No round could be kept: the figures are a hint, not a measurement."""
        return not any(one.kept for one in self.rounds)

    def peers(self) -> list[str]:
        """Every library measured here, ours first."""
        names = {name: None for one in self.used for name in one.seconds}
        return sorted(names, key=lambda name: (name not in _OURS, name))

    def seconds(self, peer: str) -> float | None:
        return _median(one.seconds.get(peer) for one in self.used)

    def cpu_seconds(self, peer: str) -> float | None:
        return _median(one.cpu_seconds.get(peer) for one in self.used)

    def ratio(self, peer: str, ours: str = OURS) -> float | None:
        """How many times as long `peer` takes, compared inside rounds."""
        return _median(
            one.seconds[peer] / one.seconds[ours] for one in self.used if peer in one.seconds and ours in one.seconds
        )

    def cpu_ratio(self, peer: str, ours: str = OURS) -> float | None:
        """How many times as much CPU time `peer` takes, compared inside rounds."""
        return _median(
            one.cpu_seconds[peer] / one.cpu_seconds[ours]
            for one in self.used
            if one.cpu_seconds.get(peer) and one.cpu_seconds.get(ours)
        )

    def best_peer(self, without: tuple[str, ...] = ()) -> str | None:
        """The fastest library that is not ours, by its median. One that was measured through torch, as ours is, does
        not count as a program that does without."""
        peers = self.peers()
        return self._fastest([peer for peer in peers if peer not in without and peer + THROUGH_TORCH not in peers])

    def best_program(self) -> str | None:
        """The fastest library that is not ours and was not reached through torch."""
        return self._fastest([peer for peer in self.peers() if peer in PROGRAMS])

    def _fastest(self, peers: list[str]) -> str | None:
        found = {peer: self.seconds(peer) for peer in peers if peer not in _OURS}
        timed = {peer: seconds for peer, seconds in found.items() if seconds is not None}
        return min(timed, key=lambda peer: timed[peer]) if timed else None

    def fraction_of_bound(self, peer: str = OURS) -> float | None:
        """1 is what memory or link allows; a 16-bit wire may pass it, and so may a message of a burst's size."""
        if self.bytes < _BOUND_FROM:
            return None
        return _median(one.bound_seconds / one.seconds[peer] for one in self.used if peer in one.seconds)

    def fraction_with_sums(self) -> float | None:
        """As `fraction_of_bound`, if what is added up waits for what is moved; None where it need not."""
        if self.bytes < _BOUND_FROM or not any(one.sum_seconds for one in self.used):
            return None
        return _median(
            (one.bound_seconds + one.sum_seconds) / one.seconds[OURS] for one in self.used if OURS in one.seconds
        )

    def bound(self) -> float | None:
        """Seconds of the bound; None where latency decides."""
        return _median(one.bound_seconds for one in self.used) if self.bytes >= _BOUND_FROM else None

    def labels(self) -> str:
        """``near 4, far 1``: how the cores lay in the rounds that count."""
        counts: dict[str, int] = {}
        for one in self.used:
            counts[one.label] = counts.get(one.label, 0) + 1
        return ", ".join(f"{label} {count}" for label, count in sorted(counts.items()))

    def progress(self) -> str:
        last = self.rounds[-1]
        times = " ".join(f"{name} {duration(seconds)}" for name, seconds in last.seconds.items())
        return f"{size_name(self.bytes)} [{last.label}{'' if last.kept else ', left out'}] {times}"

    def summary(self) -> dict[str, Any]:
        """For the JSON line."""
        best = self.best_peer()
        program = self.best_program()
        return {
            "layout": self.layout,
            "operation": self.operation,
            "bytes": self.bytes,
            "rounds_used": len(self.used),
            "rounds_left_out": len(self.rounds) - len(self.used),
            "disturbed": self.disturbed,
            "caches": self.labels(),
            "bound_seconds": _short(_median(one.bound_seconds for one in self.used)),
            "sum_seconds": _short(_median(one.sum_seconds for one in self.used)),
            "median_seconds": {peer: _short(self.seconds(peer)) for peer in self.peers()},
            "median_cpu_seconds": {peer: _short(self.cpu_seconds(peer)) for peer in self.peers()},
            "peer_over_smddp": {peer: _short(self.ratio(peer)) for peer in self.peers() if peer != OURS},
            "cpu_peer_over_smddp": {peer: _short(self.cpu_ratio(peer)) for peer in self.peers() if peer != OURS},
            "best_peer": best,
            "best_peer_over_smddp": _short(self.ratio(best)) if best else None,
            "best_program": program,
            "best_program_over_smddp": _short(self.ratio(program)) if program else None,
            "fraction_of_bound": _short(self.fraction_of_bound()),
            "fraction_with_sums": _short(self.fraction_with_sums()),
            "rounds": [_short_all(asdict(one)) for one in self.rounds],
        }


def cell_from(summary: dict[str, Any]) -> Cell:
    """The cell that a JSON line holds."""
    rounds = [Round(**one) for one in summary["rounds"]]
    return Cell(summary["layout"], summary["operation"], summary["bytes"], rounds)


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:.0f} {unit}"
    raise AssertionError


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def _short(value: float | None) -> float | None:
    """Four digits: more is noise."""
    return None if value is None else float(f"{value:.4g}")


def _short_all(value: Any) -> Any:
    if isinstance(value, float):
        return _short(value)
    if isinstance(value, dict):
        return {key: _short_all(item) for key, item in value.items()}
    return [_short_all(item) for item in value] if isinstance(value, list) else value
