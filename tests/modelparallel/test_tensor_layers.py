"""smp.nn.DistributedLinear and DistributedEmbedding against nn.Linear and nn.Embedding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from tensor_oracle import compare, start
from torch import nn

F64 = torch.float64


def linear(degree: int, prescaled: bool, bias: bool) -> dict[str, Any]:
    smp = start(degree, prescaled_batch=prescaled)
    torch.set_default_dtype(F64)
    return compare(
        lambda: nn.Linear(12, 5, bias=bias),
        lambda: smp.nn.DistributedLinear(12, 5, bias=bias),
        lambda g: (torch.randn(3, 2, 12, generator=g, requires_grad=True),),
    )


@pytest.mark.parametrize(
    ("degree", "ranks", "prescaled", "bias"),
    [(1, 1, False, True), (2, 2, False, True), (4, 4, False, True), (2, 4, False, True), (2, 4, True, True)],
)
def test_linear_equals_nn_linear_on_each_ranks_own_batch(degree: int, ranks: int, prescaled: bool, bias: bool) -> None:
    """Statement 36 (local shape of the weight), 37 (own batches; which group averages) and 38 (prescaled batch)."""
    for rank in run_ranks(linear, ranks, degree, prescaled, bias):
        assert rank.report == {"weight": ((5, 12 // degree), 1), "bias": ((5,), None)}


def embedding(degree: int, prescaled: bool) -> dict[str, Any]:
    smp = start(degree, prescaled_batch=prescaled)
    torch.set_default_dtype(F64)
    return compare(
        lambda: nn.Embedding(11, 8, padding_idx=3),
        lambda: smp.nn.DistributedEmbedding(11, 8, padding_idx=3, initializer_range=1.0),
        lambda g: (torch.randint(0, 11, (3, 5), generator=g),),
    )


@pytest.mark.parametrize(("degree", "ranks", "prescaled"), [(2, 2, False), (4, 4, False), (2, 4, True)])
def test_embedding_equals_nn_embedding(degree: int, ranks: int, prescaled: bool) -> None:
    """Statements 36 to 38 for an embedding: vectors are split, ids are those of this rank."""
    for rank in run_ranks(embedding, ranks, degree, prescaled):
        assert rank.report == {"weight": ((11, 8 // degree), 1)}


def refused() -> dict[str, str]:
    smp = start(2)
    from smdistributed.modelparallel.torch.exceptions import SMPError

    found = {}
    module = smp.nn.DistributedLinear(4, 4)
    attempts = {
        "uneven batch": lambda: module(torch.ones(2 + smp.tp_rank(), 4)),
        "not divisible": lambda: smp.nn.DistributedLinear(5, 4),
        "max_norm": lambda: smp.nn.DistributedEmbedding(4, 4, max_norm=1.0),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except SMPError as error:
            found[name] = str(error)
    # The refusal left the group usable.
    found["after"] = str(tuple(module(torch.ones(2, 4)).shape))
    return found


def test_wrong_use_is_refused_with_one_sentence_on_every_rank() -> None:
    for rank in run_ranks(refused, 2):
        assert "(shapes (2, 4), (3, 4))" in rank.report["uneven batch"]
        assert "in_features is 5, not a multiple of tensor_parallel_degree, 2" in rank.report["not divisible"]
        assert "max_norm is 1.0" in rank.report["max_norm"]
        assert rank.report["after"] == "(2, 4)"


def reload() -> list[bool]:
    """A full state_dict, as a plain module saves it, loads into the slices; so does a local one."""
    smp = start(2)
    from smdistributed.modelparallel.torch.tp import shards

    torch.manual_seed(1)
    plain = nn.Linear(6, 4)
    module = smp.nn.DistributedLinear(6, 4)
    module.load_state_dict(plain.state_dict())
    full = shards.full_state_dict(module)
    other = smp.nn.DistributedLinear(6, 4)
    other.load_state_dict(module.state_dict())
    cut = shards.take_local(module, plain.state_dict())
    return [
        torch.equal(full["weight"], plain.weight),
        torch.equal(full["bias"], plain.bias),
        torch.equal(other.weight, module.weight),
        torch.equal(cut["weight"], module.weight),
    ]


def test_full_and_local_state_dicts_load() -> None:
    assert [rank.report for rank in run_ranks(reload, 2)] == [[True] * 4] * 2
