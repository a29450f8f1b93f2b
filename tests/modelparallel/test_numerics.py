"""Losses and weights of training on ranks are those of one process: after 20 steps, not only after one."""

from __future__ import annotations

from typing import Any

import pytest
from numerics import check_spread, distance, train_alone, train_on_ranks, with_options
from numerics_models import DIGITS, TANGLED, TANGLED_ONCE

TOLERANCE = 1e-6


def parameters(case: Any) -> int:
    return sum(parameter.numel() for parameter in case.build().parameters())


@pytest.mark.parametrize(("ranks", "pipeline"), [(2, "interleaved"), (4, "interleaved"), (2, "simple")])
def test_a_chain_on_digits_is_bit_equal(ranks: int, pipeline: str) -> None:
    """Statements 20 and 27, in both schedules: gradients are the mean over micro-batches, to the last bit."""
    alone = train_alone(DIGITS)
    found = train_on_ranks(DIGITS, ranks, pipeline=pipeline)
    check_spread(found, parameters(DIGITS))
    assert [distance(one, alone) for one in found] == [0.0] * ranks
    assert alone.losses[-1] < 0.6 * alone.losses[0]


@pytest.mark.parametrize("pipeline", ["interleaved", "simple"])
def test_ties_reuse_and_routing_by_the_data(pipeline: str) -> None:
    """Statements 24 and 26: modules called twice, from two parents' ranks, or only if the data say so."""
    alone = train_alone(TANGLED)
    found = train_on_ranks(TANGLED, 2, pipeline=pipeline)
    check_spread(found, parameters(TANGLED))
    assert max(distance(one, alone) for one in found) <= TOLERANCE


def test_one_micro_batch_in_flight_is_bit_equal() -> None:
    """With one micro-batch under way gradients are added in the order of one process."""
    found = train_on_ranks(TANGLED_ONCE, 2, active_microbatches=1)
    alone = train_alone(TANGLED_ONCE)
    assert [distance(one, alone) for one in found] == [0.0, 0.0]


def test_a_tangled_model_placed_automatically() -> None:
    """Statement 23: tied weights find one rank by themselves."""
    case = with_options(TANGLED, placement={})
    found = train_on_ranks(case, 2)
    check_spread(found, parameters(case))
    assert max(distance(one, train_alone(case)) for one in found) <= TOLERANCE


@pytest.mark.parametrize("case", [DIGITS, TANGLED], ids=["digits", "tangled"])
def test_pipelines_in_replicas(case: Any) -> None:
    """Statement 21: two replicas of two partitions train as one process on the batch of both."""
    alone = train_alone(case, replicas=2)
    found = train_on_ranks(case, 4, partitions=2)
    assert max(distance(one, alone) for one in found) <= TOLERANCE
    assert [distance(one, found[0]) for one in found] == [0.0] * 4
