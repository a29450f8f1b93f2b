"""Which elements of which parameters each replica keeps the optimizer's state for. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a parameter, seen as one dimension; `index` is its number in the optimizer."""

    index: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start


def plan(sizes: Sequence[tuple[int, int]], ranks: int, cut: bool) -> list[list[Piece]]:
    """The pieces of each rank, for parameters given as (index, number of elements); a rank has at most one of each.

    cut: parameters may be cut, so ranks differ by at most one share's rounding: for optimizers that treat each element
    alone. Else whole parameters go to ranks, the largest first, each to the one with the least so far (the "longest
    processing time" rule of Graham, 1969: at most 4/3 of the best possible).
    """
    return _cut(sizes, ranks) if cut else _whole(sizes, ranks)


def _cut(sizes: Sequence[tuple[int, int]], ranks: int) -> list[list[Piece]]:
    total = sum(numel for _, numel in sizes)
    share = -(-total // ranks)
    found: list[list[Piece]] = [[] for _ in range(ranks)]
    begin = 0
    for index, numel in sizes:
        at = begin
        while at < begin + numel:
            rank = at // share
            end = min((rank + 1) * share, begin + numel)
            found[rank].append(Piece(index, at - begin, end - begin))
            at = end
        begin += numel
    return found


def _whole(sizes: Sequence[tuple[int, int]], ranks: int) -> list[list[Piece]]:
    found: list[list[Piece]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for index, numel in sorted(sizes, key=lambda one: (-one[1], one[0])):
        rank = load.index(min(load))
        load[rank] += numel
        found[rank].append(Piece(index, 0, numel))
    return [sorted(pieces, key=lambda piece: piece.index) for pieces in found]
