"""Trains one model twice, in one process with torch alone and on ranks with smp, and says how far apart they end.

The reference takes the same micro-batches one after the other, so that nothing but the distribution differs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from smp_jobs import run_ranks
from torch import nn

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A model and its data; the functions are at the top level of a module, for ranks get them by name.

    build: the model, with the same weights at every call. batch: the whole batch of a step; its tensors are the model's
    arguments. loss: of what the model returned. placement: partitions by hand, outer modules before their inner ones;
    without any the placement is automatic.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[Any, Batch], torch.Tensor]
    placement: Mapping[str, int] = field(default_factory=dict)
    steps: int = 20
    microbatches: int = 4
    lr: float = 0.1


@dataclass(frozen=True)
class Trained:
    """The loss of each step and the weights at the end, by the plain module's names."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    parameters_here: int = 0


def train_alone(case: Case, replicas: int = 1) -> Trained:
    """Train in this process: torch alone, one thread."""
    with one_thread():
        module = case.build()
        optimizer = _optimizer(case, module)
        losses = []
        for number in range(case.steps):
            optimizer.zero_grad()
            found = [_accumulate(case, module, part) for part in _split(case.batch(number), replicas)]
            for parameter in module.parameters():
                if replicas > 1 and parameter.grad is not None:
                    parameter.grad /= replicas
            optimizer.step()
            losses.append(torch.stack(found).mean().item())
        return Trained(losses, {name: value.clone() for name, value in module.state_dict().items()})


def _accumulate(case: Case, module: nn.Module, batch: Batch) -> torch.Tensor:
    losses = []
    for part in _split(batch, case.microbatches):
        loss = case.loss(module(**part), part)
        loss.backward(torch.full_like(loss, 1.0 / case.microbatches))  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def train_on_ranks(case: Case, ranks: int, limit: float = 120, **config: Any) -> list[Trained]:
    """Train with smp on that many ranks; config: further keys of the configuration."""
    given = {"partitions": ranks, "microbatches": case.microbatches, "ddp": True, **config}
    if case.placement:
        given |= {"auto_partition": False, "default_partition": 0}
    return [one.report for one in run_ranks(train_here, ranks, case, config=json.dumps(given), limit=limit)]


def train_here(case: Case) -> Trained:
    """Train on this rank; all ranks call it."""
    import smdistributed.modelparallel.torch as smp

    smp.init()
    module = case.build()
    optimizer = _optimizer(case, module)
    model = smp.DistributedModel(module)
    for name, partition in case.placement.items():
        smp.set_partition(module.get_submodule(name), partition)

    @smp.step
    def train_step(model: Any, batch: Batch) -> torch.Tensor:
        loss = case.loss(model(**batch), batch)
        model.backward(loss)
        return loss

    losses = []
    for number in range(case.steps):
        optimizer.zero_grad()
        mine = list(_split(case.batch(number), smp.dp_size()))[smp.dp_rank()]
        loss = train_step(model, mine).reduce_mean()
        optimizer.step()
        losses.append(torch.stack(smp.allgather(loss, smp.DP_GROUP)).mean().item())
    return Trained(losses, model.state_dict(), sum(parameter.numel() for parameter in model.local_parameters()))


def distance(one: Trained, other: Trained) -> float:
    """The largest difference of a loss, or of a weight by the largest weight of its tensor; relative.

    A tensor much smaller than the others counts as a hundredth of the largest: the gradient of attention's key bias is
    zero, so that its weights are nothing but rounding.
    """
    assert len(one.losses) == len(other.losses)
    assert one.weights.keys() == other.weights.keys()
    losses = [abs(a - b) / abs(b) for a, b in zip(one.losses, other.losses, strict=True)]
    floor = max(_largest(value) for value in other.weights.values()) / 100
    return max(losses + [_relative(one.weights[name], value, floor) for name, value in other.weights.items()])


def _relative(one: torch.Tensor, other: torch.Tensor, floor: float) -> float:
    assert one.shape == other.shape
    return _largest(one.double() - other.double()) / max(_largest(other), floor)


def _largest(tensor: torch.Tensor) -> float:
    return tensor.double().abs().max().item()


def check_spread(ranks: list[Trained], whole: int) -> None:
    """Each rank holds a part, and the parts are the whole: or the test would show nothing."""
    assert all(0 < one.parameters_here < whole for one in ranks)
    assert sum(one.parameters_here for one in ranks) % whole == 0


def with_options(case: Case, **changes: Any) -> Case:
    """Return the case with other values."""
    return dataclasses.replace(case, **changes)


@contextmanager
def one_thread() -> Iterator[None]:
    """As the ranks: sums in parallel would be rounded otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _split(batch: Batch, parts: int) -> Iterator[Batch]:
    pieces = {name: tensor.chunk(parts) for name, tensor in batch.items()}
    return ({name: chunks[index] for name, chunks in pieces.items()} for index in range(parts))


def _optimizer(case: Case, module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=case.lr, momentum=0.9)
