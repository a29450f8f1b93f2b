"""smp's side of benchmarks/pipeline.py: its parameters come from SM_HP_MP_PARAMETERS, as a launcher gives them."""

from __future__ import annotations

import time
from typing import Any

import smdistributed.modelparallel.torch as smp
import torch
from pipeline_models import HOP_WIDTH, Work
from torch import nn


class WithLoss(nn.Module):
    """The last stage and the loss as one module, as the last stage of torch's schedules has both."""

    def __init__(self, stage: nn.Module, loss: Any) -> None:
        super().__init__()
        self.stage, self.loss = stage, loss

    def forward(self, values: torch.Tensor, targets: torch.Tensor) -> Any:
        return self.loss(self.stage(values), targets)


class InStages(nn.Module):
    """The stages in turn; those of other ranks one chain, the last one with the loss."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.stages = nn.Sequential(*work.stages[:-1])
        self.tail = WithLoss(work.stages[-1], work.loss)

    def forward(self, values: torch.Tensor, targets: torch.Tensor) -> Any:
        return self.tail(self.stages(values), targets)


class Plain(nn.Module):
    """The layers as one Sequential, the loss outside: as a script has it. `smp` decides which rank runs what."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for stage in work.stages for layer in stage))
        self.loss = work.loss

    def forward(self, values: torch.Tensor, targets: torch.Tensor) -> Any:
        return self.loss(self.layers(values), targets)


class Chain(nn.Module):
    """All stages one Sequential, placed by hand; the loss on the first rank."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.layers = nn.Sequential(*work.stages)
        self.loss = work.loss

    def forward(self, values: torch.Tensor, targets: torch.Tensor) -> Any:
        return self.loss(self.layers(values), targets)


_SHAPES = {"chain": Chain, "tail": InStages, "plain": Plain}


@smp.step
def train(model: smp.DistributedModel, values: torch.Tensor, targets: torch.Tensor) -> Any:
    loss = model(values, targets)
    model.backward(loss)
    return loss


class Smp:
    """A rank of smp."""

    def __init__(
        self, work: Work, shape: str, placed: bool, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
    ) -> None:
        smp.init()
        self.work = work
        module = _SHAPES[shape](work)
        self.optimizer = smp.DistributedOptimizer(optimizer(module.parameters(), lr=0.01))  # type: ignore[call-arg]
        self.model = smp.DistributedModel(module)
        if placed:
            *first, last = work.stages
            for rank, stage in enumerate(first):
                smp.set_partition(stage, rank)
            smp.set_partition(module.tail if isinstance(module, InStages) else last, len(first))

    def meet(self) -> None:
        smp.barrier()

    def step(self) -> float | None:
        self.optimizer.zero_grad()
        output = train(self.model, self.work.inputs, self.work.targets)
        self.optimizer.step()
        return float(output.reduce_mean())

    def close(self) -> None:
        """The library ends with the process."""


class Remote(nn.Module):
    """Calls one small module of the other rank many times."""

    def __init__(self) -> None:
        super().__init__()
        self.there = nn.Linear(HOP_WIDTH, HOP_WIDTH)

    def forward(self, values: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            values = self.there(values)
        return values.sum()


class Hops:
    """Seconds of one remote call: its forward, and its backward."""

    def __init__(self) -> None:
        smp.init()
        self.module = Remote()
        self.model = smp.DistributedModel(self.module)
        smp.set_partition(self.module.there, 1)
        self.times: tuple[float, float] = (0.0, 0.0)

    def measure(self, count: int) -> tuple[float, float]:
        smp.barrier()
        _hop(self.model, self, torch.ones(1, HOP_WIDTH), count)
        return self.times


@smp.step
def _hop(model: smp.DistributedModel, hops: Hops, values: torch.Tensor, count: int) -> None:
    start = time.perf_counter()
    loss = model(values, count)
    middle = time.perf_counter()
    model.backward(loss)
    hops.times = ((middle - start) / count, (time.perf_counter() - middle) / count)
