"""What a step function returns, put together from what its body returned for each micro-batch."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from smdistributed.modelparallel.torch.step_output import StepOutput, assemble

Pair = namedtuple("Pair", "loss logits")


@dataclasses.dataclass(frozen=True)
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    inner: Any = None
    count: int = 3


def tensors() -> list[torch.Tensor]:
    """Of three micro-batches, with a graph."""
    weight = torch.ones((), requires_grad=True)
    return [weight * one for one in torch.tensor([1.0, 2.0, 6.0])]


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize(
    ("build", "loss"),
    [
        (lambda one: one, lambda out: out),
        (lambda one: (one, 1), lambda out: out[0]),
        (lambda one: [one], lambda out: out[0]),
        (lambda one: {"loss": one}, lambda out: out["loss"]),
        (lambda one: OrderedDict(a=[{"loss": one}]), lambda out: out["a"][0]["loss"]),
        (lambda one: Pair(one, one), lambda out: out.loss),
        (lambda one: Output(one, one), lambda out: out.loss),
        (lambda one: {"out": Output(one, one, inner=Output(one, one))}, lambda out: out["out"].inner.logits),
    ],
)
def test_structure_is_kept(build: Any, loss: Any, detach: bool) -> None:
    found = assemble([build(one) for one in tensors()], detach)
    assert isinstance(loss(found), StepOutput)
    assert loss(found).reduce_mean() == 3
    assert loss(found).reduce_sum().requires_grad is not detach
    assert isinstance(found, StepOutput) or type(found) is type(build(None))


def test_a_model_output_of_transformers() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    found = assemble([outputs.CausalLMOutputWithPast(loss=one, logits=one[None]) for one in tensors()], detach=True)
    assert isinstance(found, outputs.CausalLMOutputWithPast)
    assert found.loss.reduce_mean() == 3
    assert torch.equal(found["logits"].concat(), torch.tensor([1.0, 2, 6]))
    assert found.past_key_values is None


def test_what_is_no_tensor_is_a_list_by_micro_batch() -> None:
    """Shapes are no containers of tensors; None is the most common result of all."""
    shape = torch.Size([4, 2])
    values = [(None, shape, "text", 1.5, Output(one, one, count=index)) for index, one in enumerate(tensors())]
    nothing, shapes, text, numbers, output = assemble(values, detach=True)
    assert nothing == [None] * 3
    assert shapes == [shape] * 3
    assert text == ["text"] * 3
    assert numbers == [1.5] * 3
    assert output.count == [0, 1, 2]
    assert assemble([None, None], detach=True) == [None, None]


def test_results_that_differ_are_a_list_without_graph() -> None:
    first, second, _ = tensors()
    for results in ([first, None], [{"a": first}, {"b": second}], [(first,), [second]], [Output(first, first), None]):
        found = assemble(results, detach=True)
        assert isinstance(found, list)
    assert not assemble([{"a": first}, {"b": second}], detach=True)[1]["b"].requires_grad
    assert assemble([{"a": first}, {"b": second}], detach=False)[1]["b"].requires_grad
