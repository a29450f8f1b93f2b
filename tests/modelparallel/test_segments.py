"""The arithmetic of placement against brute force."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smdistributed.modelparallel.torch.partition import segments as module
from smdistributed.modelparallel.torch.partition.recursive import allocate
from smdistributed.modelparallel.torch.partition.segments import segments

COSTS = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=9)


def pieces(costs: list[float], ends: list[int]) -> list[float]:
    return [sum(costs[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def divisions(costs: list[float], count: int) -> list[list[float]]:
    cuts = itertools.combinations(range(1, len(costs)), count - 1)
    return [pieces(costs, [*cut, len(costs)]) for cut in cuts]


@given(COSTS, st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_the_largest_segment_is_the_least_possible(costs: list[float], count: int) -> None:
    """Equation 3; and among the best divisions the most even one."""
    count = min(count, len(costs))
    ends = segments(costs, count)
    assert len(ends) == count
    assert ends[-1] == len(costs)
    assert all(one < other for one, other in zip([0, *ends], ends, strict=False))
    found = pieces(costs, ends)
    least = min(max(each) for each in divisions(costs, count))
    assert max(found) == pytest.approx(least)
    even = min(sum(x * x for x in each) for each in divisions(costs, count) if max(each) <= least)
    assert sum(x * x for x in found) == pytest.approx(even)


@given(COSTS, st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_long_rows_get_the_same_largest_segment(costs: list[float], count: int) -> None:
    """The division for rows too long to balance."""
    count = min(count, len(costs))
    before = module._BALANCED
    module._BALANCED = 0
    try:
        ends = segments(costs, count)
    finally:
        module._BALANCED = before
    assert ends[-1] == len(costs)
    assert all(one < other for one, other in zip([0, *ends], ends, strict=False))
    assert max(pieces(costs, ends)) == pytest.approx(min(max(each) for each in divisions(costs, count)))


def test_dhondt() -> None:
    """The example of the method: seats of parties with 100, 80, 30 and 20 thousand votes."""
    assert allocate([100, 80, 30, 20], [8] * 4, 8) == [4, 3, 1, 0]
    assert allocate([100, 80, 30, 20], [1, 8, 8, 8], 8) == [1, 5, 1, 1]
    assert allocate([5, 1], [1, 1], 4) == [1, 1]
