"""Which layers of a Sequential are checkpointed together: pure arithmetic over the ranks that own them."""

from __future__ import annotations

import re
from typing import Sequence

from .. import checks

_GROUP = re.compile(r"group_([1-9]\d*)")


def largest_group(strategy: str) -> int | None:
    """How many layers one checkpoint holds at most: 1 for "each", x for "group_x", None (no limit) for "contiguous".

    Raises SMPValueError for any other strategy.
    """
    if strategy == "each":
        return 1
    if strategy == "contiguous":
        return None
    found = _GROUP.fullmatch(strategy) if isinstance(strategy, str) else None
    if found is None:
        allowed = "'each', 'contiguous' or 'group_x' with x a whole number from 1"
        checks.refuse("activation checkpointing", "strategy", strategy, allowed)
    return int(found.group(1))


def groups(owners: Sequence[int | None], strategy: str) -> list[tuple[int, int]]:
    """Half-open ranges of consecutive layers, one range a checkpoint; together they cover all layers in order.

    owners: the pp_rank of each layer; None where the layer's own tree is split over ranks, which makes it a range of
    its own. As published for the strategies: a range never crosses a change of rank, and "group_x" takes x layers where
    x consecutive ones are left on a rank, fewer where they are not.
    """
    most = largest_group(strategy)
    ranges: list[tuple[int, int]] = []
    start = 0
    while start < len(owners):
        end = start + 1
        while end < len(owners) and owners[end] == owners[start] is not None and (most is None or end - start < most):
            end += 1
        ranges.append((start, end))
        start = end
    return ranges
