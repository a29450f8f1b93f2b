"""Divide a row of costs into consecutive segments so that the largest is least: equation 3 of arXiv 2111.05972."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Sequence

# Secondary balance is quadratic in the number of items: above this only the fullest segment is minimised.
_BALANCED = 1024


def segments(costs: Sequence[float], count: int) -> list[int]:
    """Ends (exclusive) of `count` consecutive, non-empty segments of costs, so that the largest segment cost is least.

    Among such divisions the one with the least sum of squared segment costs. Equation 3 of the paper, with a binary
    search: O(count * n * log n). Requires 1 <= count <= len(costs).
    """
    size = len(costs)
    total = [0.0, *accumulate(costs)]
    best = list(total)
    for made in range(2, count + 1):
        following = [float("inf")] * (size + 1)
        for end in range(made, size + 1):
            low, high = made - 1, end - 1
            # best rises with the cut and the rest falls with it: the least maximum is where they cross.
            while low < high:
                middle = (low + high) // 2
                if best[middle] < total[end] - total[middle]:
                    low = middle + 1
                else:
                    high = middle
            following[end] = min(max(best[cut], total[end] - total[cut]) for cut in (low, max(low - 1, made - 1)))
        best = following
    return _balanced(total, count, best[size])


def _balanced(total: list[float], count: int, limit: float) -> list[int]:
    """Ends of the division with the least sum of squares whose segments stay within limit."""
    size = len(total) - 1
    limit += 1e-9 * (abs(limit) + 1e-300)
    if size > _BALANCED:
        return _greedy(total, count, limit)
    best: list[float] = [0.0] + [float("inf")] * size
    cuts: list[list[int]] = []
    for made in range(1, count + 1):
        following, cut_at = [float("inf")] * (size + 1), [0] * (size + 1)
        for end in range(made, size - (count - made) + 1):
            for cut in range(end - 1, made - 2, -1):
                piece = total[end] - total[cut]
                if piece > limit:
                    break
                value = best[cut] + piece * piece
                if value < following[end]:
                    following[end], cut_at[end] = value, cut
        best = following
        cuts.append(cut_at)
    ends = [size]
    for cut_at in reversed(cuts[1:]):
        ends.append(cut_at[ends[-1]])
    return ends[::-1]


def _greedy(total: list[float], count: int, limit: float) -> list[int]:
    size, start = len(total) - 1, 0
    ends: list[int] = []
    for made in range(1, count):
        end = bisect_left(total, total[start] + limit, start + 1) - 1
        while end < size and total[end + 1] - total[start] <= limit:
            end += 1
        start = min(max(end, start + 1), size - (count - made))
        ends.append(start)
    return [*ends, size]
