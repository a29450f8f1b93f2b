"""Models of transformers train on ranks as in one process, wherever their modules lie."""

from __future__ import annotations

import pytest
from numerics import check_spread, distance, train_alone, train_on_ranks
from numerics_transformers import CASES

TOLERANCE = 1e-6


@pytest.mark.parametrize("kind", sorted(CASES))
def test_nested_and_crossing_placements(kind: str) -> None:
    """C3, statements 23, 24 and 26: losses and weights after 20 steps, with calls that go to a rank and back."""
    case = CASES[kind]
    found = train_on_ranks(case, 2)
    check_spread(found, sum(parameter.numel() for parameter in case.build().parameters()))
    alone = train_alone(case)
    assert max(distance(one, alone) for one in found) <= TOLERANCE
    assert alone.losses[-1] < alone.losses[0]
