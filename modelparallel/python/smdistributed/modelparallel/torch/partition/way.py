"""The way of a micro-batch through the ranks, as calls and returns between modules make it."""

from __future__ import annotations

from typing import Mapping

from torch import nn

from .schedule import Visit
from .tree import Tree


def way(module: nn.Module, tree: Tree, ranks: Mapping[str, int]) -> list[Visit]:
    """The visits of a forward pass, the whole of which costs 1; consecutive ones on a rank are one.

    From a part to the next one it goes by the module that calls both, with a visit that costs nothing but its turn,
    unless that is an nn.Sequential, whose modules hand over directly. It begins and ends on rank 0, in the step.
    """
    modules = dict(module.named_modules())
    total = sum(tree.compute.values()) or 1.0
    visits = [Visit(0, 0.0)]

    def go(rank: int, cost: float) -> None:
        if visits[-1].rank == rank:
            visits[-1] = Visit(rank, visits[-1].cost + cost)
        else:
            visits.append(Visit(rank, cost))

    before = None
    for part in tree.order:
        if before is not None:
            caller = _caller_of_both(before, part)
            if not isinstance(modules[caller], nn.Sequential) and ranks[caller] != ranks[part]:
                go(ranks[caller], 0.0)
        go(ranks[part], tree.compute[part] / total)
        before = part
    go(0, 0.0)
    return visits


def _caller_of_both(one: str, other: str) -> str:
    common = []
    for left, right in zip(one.split("."), other.split(".")):
        if left != right:
            break
        common.append(left)
    return ".".join(common)
