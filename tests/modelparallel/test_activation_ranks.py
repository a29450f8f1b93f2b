"""Activation checkpointing of modules on several ranks: equal losses, recomputed where they lie, refused when split."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn

MANUAL = '{"partitions": 2, "microbatches": 2, "auto_partition": false, "default_partition": 0}'
AUTO = '{"partitions": 2, "microbatches": 2}'


class Layer(nn.Module):
    """A layer that counts how often this rank runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.linear(x).tanh().relu() + x


class Net(nn.Module):
    """Five layers, two on rank 0 and three on rank 1 (by hand), and a head that is called beside the sequence."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(5)))
        self.side = Layer()
        self.way = way

    def forward(self, x: torch.Tensor) -> Any:
        from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint, checkpoint_sequential

        kind, _, strategy = self.way.partition(":")
        if kind == "call":
            return checkpoint(self.side, checkpoint_sequential(self.layers, x, strategy=strategy)).sum()
        if kind == "native":
            for layer in (*self.layers, self.side):
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            return x.sum()
        return self.side(self.layers(x)).sum()


def train(way: str, split: str = "") -> Any:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    torch.manual_seed(1)
    plain = Net(way)
    for index in (2, 3, 4):
        smp.set_partition(plain.layers[index], 1)
    smp.set_partition(plain.side, 1)
    if split:
        smp.set_partition(plain.get_submodule(split), 0)
    model = smp.DistributedModel(plain)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(plain.parameters(), lr=0.05))
    kind, _, strategy = way.partition(":")
    if kind == "set":
        smp.set_activation_checkpointing(plain.layers, strategy=strategy)
        smp.set_activation_checkpointing(plain.side)
    if kind == "root":
        smp.set_activation_checkpointing(plain)

    @smp.step
    def step(model: Any, x: torch.Tensor) -> Any:
        loss = model(x)
        model.backward(loss)
        return loss

    losses = []
    for number in range(3):
        optimizer.zero_grad()
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
        losses.append(step(model, x).reduce_sum().item())
        optimizer.step()
    smp.barrier()
    return losses, [layer.calls for layer in (*plain.layers, plain.side)]


WAYS = ["set:each", "set:contiguous", "set:group_2", "call:each", "call:contiguous", "call:group_3", "native"]


def test_statement_41_checkpointed_layers_are_recomputed_on_their_own_rank() -> None:
    """Three steps of two micro-batches: a layer runs once for each on its rank, twice where it is checkpointed."""
    plain = [one.report for one in run_ranks(train, 2, "plain", config=MANUAL)]
    assert [calls for _, calls in plain] == [[6, 6, 0, 0, 0, 0], [0, 0, 6, 6, 6, 6]]
    for way in WAYS:
        found = [one.report for one in run_ranks(train, 2, way, config=MANUAL)]
        assert [losses for losses, _ in found] == [losses for losses, _ in plain], way
        if way != "native":
            assert [calls for _, calls in found] == [[12, 12, 0, 0, 0, 0], [0, 0, 12, 12, 12, 12]], way


def refused(way: str, split: str) -> str:
    from smdistributed.modelparallel.torch.exceptions import SMPError

    with pytest.raises(SMPError) as caught:
        train(way, split)
    return str(caught.value)


def test_statement_41_a_split_module_is_refused_where_the_partition_is_by_hand() -> None:
    for one in run_ranks(refused, 2, "set:each", "side.linear", config=MANUAL):
        assert (
            "the activations of 'side' cannot be checkpointed: it is on pp rank 1 and its part 'linear' on"
            in one.report
        )
    for one in run_ranks(refused, 2, "call:each", "layers.3.linear", config=MANUAL):
        assert "the activations of 'layers.3' cannot be checkpointed" in one.report


def warned(way: str) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train(way)
    return result, [str(one.message) for one in caught if "cannot be checkpointed" in str(one.message)]


def test_statement_41_a_split_module_runs_as_it_is_where_the_partition_is_automatic() -> None:
    """One warning, the same losses, nothing computed twice."""
    plain = [one.report for one in run_ranks(train, 2, "plain", config=AUTO)]
    for one, (losses, calls) in zip(run_ranks(warned, 2, "root", config=AUTO), plain, strict=True):
        (found, counted), said = one.report
        assert found == losses
        assert counted == calls
        assert len(said) == 1
        assert "'the model'" in said[0]
        assert said[0].endswith("it runs without checkpointing")
