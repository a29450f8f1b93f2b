"""What a trace records, and that it leaves no trace."""

from __future__ import annotations

import itertools
import random

import partition_models as models
import pytest
import torch
from smdistributed.modelparallel.torch.partition import Trace, is_tracing, trace
from torch import nn


def traced(module: nn.Module, x: torch.Tensor, times: bool = False, memory: bool = False) -> Trace:
    found = trace(module, lambda: module(x), times=times, memory=memory)
    assert found is not None
    return found


def test_order_callers_and_bytes() -> None:
    """Calls in order with repeats, who called, bytes in, out and held; a shared weight counts once."""
    model = models.Tied(width=8, blocks=3)
    found = traced(model, torch.zeros(2, 5, dtype=torch.long))
    assert found.order == ["", "embedding", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert found.modules["blocks.1"].callers == [""]
    assert found.modules["blocks"].calls == 0
    block = found.modules["blocks.1"]
    assert (block.input_bytes, block.output_bytes) == (2 * 5 * 8 * 4, 2 * 5 * 8 * 4)
    assert block.parameter_bytes == (64 + 8) * 4
    assert found.modules["embedding"].parameter_bytes == 12 * 8 * 4
    assert found.modules["head"].parameter_bytes == 0
    # The output is inside a dictionary.
    assert found.modules[""].output_bytes == 2 * 5 * 12 * 4
    chain = ["embedding", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert found.feeds == set(itertools.pairwise(chain))


def test_operations_are_those_of_the_formula() -> None:
    """A linear layer of n by m on b rows is 2 * b * n * m operations; one that runs twice counts twice."""
    model = models.Routed().eval()
    found = traced(model, torch.ones(3, 5))
    assert found.modules["late"].own_operations == 2 * 3 * 5 * 5
    assert found.modules["again"].own_operations == 2 * found.modules["late"].own_operations
    assert found.modules["again"].calls == 2
    assert found.modules["unused"].first_call is None


def test_generators_and_buffers_are_as_before() -> None:
    """Dropout draws and batch norm counts during a trace are undone; a buffer keeps its identity."""
    model = models.Routed().train()
    torch.manual_seed(3)
    random.seed(3)
    expected = (torch.rand(2), random.random())
    torch.manual_seed(3)
    random.seed(3)
    mean = model.norm.running_mean
    assert mean is not None

    def run() -> None:
        assert is_tracing()
        random.random()
        model(torch.randn(4, 5))
        assert model.norm.running_mean is not None
        assert model.norm.running_mean.abs().sum() > 0

    trace(model, run)
    assert not is_tracing()
    assert model.norm.running_mean is mean
    assert mean.abs().sum() == 0
    assert int(model.norm.num_batches_tracked or 0) == 0
    assert torch.equal(torch.rand(2), expected[0])
    assert random.random() == expected[1]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_exception_passes_and_removes_the_hooks() -> None:
    model = models.chain([3, 4])
    with pytest.raises(RuntimeError, match="shapes"):
        trace(model, lambda: model(torch.zeros(2, 7)))
    assert not any(module._forward_hooks for module in model.modules())
    assert not is_tracing()


def test_a_module_that_fails_and_is_replaced() -> None:
    """An exception that the caller handles ends the call: what runs after it is the caller's."""

    class Falling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrong, self.right = nn.Linear(3, 3), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.wrong(x)  # type: ignore[no-any-return]
            except RuntimeError:
                return self.right(x)  # type: ignore[no-any-return]

    found = traced(Falling(), torch.zeros(2, 4), times=True)
    assert found.order == ["", "wrong", "right"]
    assert found.modules["right"].callers == [""]
    assert found.modules["right"].own_seconds is not None


def test_shapes_of_weights_read_without_a_call_are_noticed() -> None:
    """They are not known on a rank that does not have the weight; its dtype and device are."""

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.columns, self.kind = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.kind(self.columns(self.rows(x))).to(self.kind.weight.dtype)
            return y.view(-1, self.rows.weight.shape[0]) * self.columns.weight.size(1)

    assert traced(Reading(), torch.zeros(2, 4)).uses == {("", "rows"), ("", "columns")}


def test_weights_used_without_a_call_are_noticed() -> None:
    """The user and the holder of the weight become a pair; calls that are usual do not."""
    found = traced(models.Borrowing(), torch.zeros(2, 6))
    assert found.uses == {("", "borrowed")}
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.zeros(1, 3, 4)
    seen = trace(attention, lambda: attention(x, x, x))
    assert seen is not None
    assert ("", "out_proj") in seen.uses


def test_times_and_kept_activations() -> None:
    """Times are exclusive and add up to no more than the run; kept bytes are those that autograd holds."""
    model = models.chain([4, 4, 4])
    found = traced(model, torch.ones(8, 4), times=True, memory=True)
    assert all(record.own_seconds is not None and record.own_seconds >= 0 for record in found.modules.values())
    # Linear keeps its input: the second layer's is the first one's output, the first one's is the batch itself.
    assert found.modules["1"].own_activation_bytes == 8 * 4 * 4
    estimated = traced(model, torch.ones(8, 4))
    assert estimated.modules["1"].own_seconds is None
    assert estimated.modules["1"].own_activation_bytes == 8 * 4 * 4


def test_nothing_is_kept_without_gradients() -> None:
    model = models.chain([4, 4, 4])
    with torch.no_grad():
        found = traced(model, torch.ones(8, 4), memory=True)
    assert sum(record.own_activation_bytes for record in found.modules.values()) == 0


def test_parameters_without_values() -> None:
    """Meta parameters are imagined: same order, operations and bytes as of the model with values, nothing allocated."""
    with torch.device("meta"):
        imagined = models.Tied(width=8, blocks=3)
    real = models.Tied(width=8, blocks=3)
    tokens = torch.zeros(2, 5, dtype=torch.long)
    one, other = traced(imagined, tokens), traced(real, tokens)
    assert one.order == other.order
    assert {name: vars(record) for name, record in one.modules.items()} == {
        name: vars(record) for name, record in other.modules.items()
    }
    assert all(parameter.is_meta for parameter in imagined.parameters())
    assert imagined.head.weight is imagined.embedding.weight


def test_a_forward_pass_that_needs_values_has_no_trace() -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(3, device="meta"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * float(self.weight.sum().item())

    model = Reading()
    assert trace(model, lambda: model(torch.ones(3))) is None
    assert model.weight.is_meta
