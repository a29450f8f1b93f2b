"""What a batch took, by the clocks of its ranks."""

from __future__ import annotations

import pytest
from harness.measure import each_alone, follow_one_another


def test_a_batch_that_stands_alone_takes_as_long_as_its_slowest_rank() -> None:
    late = [10.5, 11.0, 20.0, 23.0]
    early = [10.0, 11.1, 20.1, 22.0]
    assert each_alone([late, early]) == pytest.approx([1.1, 3.0])


def test_batches_that_follow_one_another_take_together_what_they_took() -> None:
    # The ranks take turns in being late by a quarter: by its own clock one of them always takes 1.25.
    one = [0.0, 1.0, 1.0, 2.25, 2.25, 3.0, 3.0, 4.25]
    other = [0.0, 1.25, 1.25, 2.0, 2.0, 3.25, 3.25, 4.0]
    assert each_alone([one, other]) == pytest.approx([1.25] * 4)
    took = follow_one_another([one, other])
    assert took == pytest.approx([1.0, 1.0, 1.0])
    assert sum(took) == pytest.approx(4.25 - 1.25)
