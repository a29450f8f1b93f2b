"""Some jobs in which one rank fails somehow; `make faults` draws more."""

from __future__ import annotations

import pytest
from drawn_faults import FAULTS, plan
from run_faults import problems_of

# One of each.
SEEDS = [next(seed for seed in range(1000) if plan(seed).fault == fault) for fault in FAULTS]


@pytest.mark.parametrize("seed", SEEDS, ids=FAULTS)
def test_every_rank_says_who_failed(seed: int) -> None:
    assert problems_of(seed) == [], plan(seed)
