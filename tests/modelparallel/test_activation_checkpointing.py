"""Activation checkpointing in one process: what is kept, what is recomputed, equal gradients, wrong use."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from smdistributed.modelparallel.torch import set_activation_checkpointing
from smdistributed.modelparallel.torch.activation.strategy import groups
from smdistributed.modelparallel.torch.exceptions import SMPValueError
from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint, checkpoint_sequential
from torch import nn


class Counted(nn.Module):
    """A layer with dropout that counts its forward passes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if isinstance(x, tuple):
            return self.dropout(torch.tanh(self.linear(x[0]))) + x[1], x[1]
        return self.dropout(torch.tanh(self.linear(x)))


def _any(value: object) -> Any:
    """For calls that a type checker would refuse as well."""
    return value


def layers(number: int = 4) -> Any:
    torch.manual_seed(1)
    return nn.Sequential(*(Counted() for _ in range(number)))


def gradients(model: nn.Module, call: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Gradients of one pass with a fixed seed, the input's first."""
    torch.manual_seed(2)
    x = torch.randn(3, 8, requires_grad=True)
    model.zero_grad()
    call(x).square().sum().backward()
    assert x.grad is not None
    return [x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def saved_bytes(call: Callable[[], torch.Tensor]) -> int:
    """Bytes that autograd keeps between the passes."""
    kept = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return kept


@pytest.mark.parametrize("strategy", ["each", "contiguous", "group_1", "group_3"])
def test_statement_41_gradients_equal_those_without_checkpoints_dropout_included(strategy: str) -> None:
    plain, marked, called = layers(), layers(), layers()
    set_activation_checkpointing(marked, strategy=strategy)
    expected = gradients(plain, plain)
    for found in (
        gradients(marked, marked),
        gradients(called, lambda x: checkpoint_sequential(called, x, strategy=strategy)),
    ):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert [layer.calls for layer in plain] == [1] * 4
    # A layer whose backward needs nothing that it computes last may stop early, but each forward is entered again.
    assert [layer.calls for layer in marked] == [2] * 4
    assert [layer.calls for layer in called] == [2] * 4


def test_without_preserved_random_numbers_dropout_differs_in_the_recomputation() -> None:
    plain, marked = layers(), layers()
    set_activation_checkpointing(marked, preserve_rng_state=False)
    expected, found = gradients(plain, plain), gradients(marked, marked)
    assert not all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_statement_41_strategies_group_consecutive_layers_of_one_rank() -> None:
    """The published examples: [a, b | c, d] contiguous, [a, b | c, d, e] group_3."""
    assert groups([0, 0, 1, 1], "contiguous") == [(0, 2), (2, 4)]
    assert groups([0, 0, 1, 1, 1], "group_3") == [(0, 2), (2, 5)]
    assert groups([0, 0, 1, 1], "each") == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert groups([0] * 5, "group_2") == [(0, 2), (2, 4), (4, 5)]
    assert groups([0, None, None, 0, 0], "contiguous") == [(0, 1), (1, 2), (2, 3), (3, 5)]
    assert groups([], "contiguous") == []


def test_larger_groups_keep_fewer_tensors() -> None:
    kept = {}
    for strategy in ("each", "group_2", "contiguous"):
        model = layers()
        set_activation_checkpointing(model, strategy=strategy)
        kept[strategy] = saved_bytes(functools.partial(model, torch.randn(3, 8, requires_grad=True)))
    one = 3 * 8 * 4
    assert kept == {"each": 4 * one, "group_2": 2 * one, "contiguous": one}
    plain = layers()
    assert saved_bytes(lambda: plain(torch.randn(3, 8, requires_grad=True))) > 4 * one


def test_a_module_of_any_structure_is_checkpointed() -> None:
    class Structured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.calls = 0

        def forward(self, pair: dict[str, torch.Tensor], *, scale: torch.Tensor, name: str) -> dict[str, Any]:
            self.calls += 1
            return {"out": self.linear(pair["x"]).tanh() * scale, "name": name}

    torch.manual_seed(1)
    plain = Structured()
    marked = copy.deepcopy(plain)
    set_activation_checkpointing(marked)

    def call(model: nn.Module) -> Callable[[Any], Any]:
        return lambda x: model({"x": x}, scale=x.sigmoid(), name="a")["out"]

    expected, found = gradients(plain, call(plain)), gradients(marked, call(marked))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert marked.calls == 2
    by_call = copy.deepcopy(plain)
    found = gradients(by_call, lambda x: checkpoint(by_call, {"x": x}, scale=x.sigmoid(), name="a")["out"])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert by_call.calls - plain.calls == 2


def test_layers_that_pass_tuples_on() -> None:
    plain, marked = layers(), layers()
    set_activation_checkpointing(marked, pack_args_as_tuple=True, strategy="group_2")
    expected = gradients(plain, lambda x: plain((x, x))[0])
    found = gradients(marked, lambda x: marked((x, x))[0])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_without_gradients_nothing_is_recomputed_and_hooks_run_once() -> None:
    model = layers()
    set_activation_checkpointing(model, strategy="contiguous")
    with torch.no_grad():
        model(torch.randn(3, 8))
    assert [layer.calls for layer in model] == [1] * 4


def test_a_copy_is_checkpointed_and_stands_alone() -> None:
    first, last = layers(2), Counted()
    model = nn.Sequential(first, last)
    set_activation_checkpointing(first, strategy="contiguous")
    set_activation_checkpointing(last)
    other: Any = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    gradients(other, other)
    assert [layer.calls for layer in (*other[0], other[1])] == [2, 2, 2]
    assert [layer.calls for layer in (*first, last)] == [0, 0, 0]
    assert all(p.grad is None for p in model.parameters())
    assert list(other.state_dict()) == list(nn.Sequential(layers(2), Counted()).state_dict())


@pytest.mark.parametrize("strategy", ["each", "contiguous"])
def test_running_statistics_are_updated_once(strategy: str) -> None:
    plain = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())
    marked = copy.deepcopy(plain)
    set_activation_checkpointing(marked, strategy=strategy)
    buffers = list(marked.buffers())
    expected, found = gradients(plain, plain), gradients(marked, marked)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert all(one is other for one, other in zip(marked.buffers(), buffers, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(marked.buffers(), plain.buffers(), strict=True))


def test_native_checkpointing_inside_a_checkpointed_module() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Counted()

        def forward(self, x: torch.Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    torch.manual_seed(1)
    plain = Nested()
    marked = copy.deepcopy(plain)
    set_activation_checkpointing(marked)
    expected, found = gradients(plain, plain.inner), gradients(marked, marked)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_last_setting_of_a_module_counts() -> None:
    model = layers()
    set_activation_checkpointing(model, strategy="each")
    set_activation_checkpointing(model, strategy="contiguous")
    gradients(model, model)
    assert [layer.calls for layer in model] == [2] * 4


def test_a_forward_of_the_instance_survives_a_second_setting() -> None:
    model = nn.Linear(2, 2)
    model.__dict__["forward"] = lambda x: x + 1
    for _ in range(2):
        set_activation_checkpointing(model)
        assert torch.equal(model(torch.zeros(2)), torch.ones(2))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: checkpoint(_any(torch.tanh), torch.ones(1)), "checkpoint takes an nn.Module, not a builtin"),
        (
            lambda: set_activation_checkpointing(_any("layers")),
            "set_activation_checkpointing takes an nn.Module, not a str",
        ),
        (lambda: set_activation_checkpointing(layers(), strategy="all"), "strategy is 'all': it must be 'each'"),
        (lambda: set_activation_checkpointing(layers(), strategy="group_0"), "strategy is 'group_0'"),
        (lambda: set_activation_checkpointing(layers(), strategy=_any(2)), "strategy is 2"),
        (
            lambda: set_activation_checkpointing(Counted(), strategy="contiguous"),
            "is for an nn.Sequential, and this",
        ),
        (lambda: set_activation_checkpointing(Counted(), pack_args_as_tuple=True), "pack_args_as_tuple=True is for an"),
        (lambda: checkpoint_sequential(_any(Counted()), torch.ones(1)), "checkpoint_sequential takes an nn.Sequential"),
        (lambda: checkpoint_sequential(layers(), torch.ones(1), strategy="x"), "strategy is 'x'"),
    ],
)
def test_wrong_use_gets_one_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(SMPValueError, match=re.escape(sentence)) as caught:
        call()
    assert "\n" not in str(caught.value)
