"""The training job that the tests of checkpoints save, interrupt and resume."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

TWO = '{"partitions": 2, "microbatches": 2, "ddp": true}'
FOUR = '{"partitions": 4, "microbatches": 2, "ddp": true}'
OPTIMIZER_SHARDED = '{"partitions": 2, "microbatches": 2, "ddp": true, "shard_optimizer_state": true}'
MODEL_SHARDED = '{"ddp": true, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 20}'
HALF = '{"partitions": 2, "microbatches": 2, "ddp": true, "fp16": true}'
MANUAL = '{"partitions": 2, "microbatches": 2, "ddp": true, "auto_partition": false, "default_partition": 0}'


class Net(nn.Module):
    """A chain with dropout and a buffer: the order of micro-batches on a rank, so of its random numbers, is fixed."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3)) for _ in range(4)]
        self.chain = nn.Sequential(*blocks, nn.BatchNorm1d(8), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.chain(x)


class Job:
    """A small training job: a batch a step that depends on the number of the step alone."""

    def __init__(self, seed: int = 0, build: Any = Net) -> None:
        import smdistributed.modelparallel.torch as smp

        smp.init()
        torch.manual_seed(seed)
        self.smp = smp
        self.plain = build()
        self.model = smp.DistributedModel(self.plain)
        self.optimizer = self.wrapped(torch.optim.AdamW(self.plain.parameters(), lr=0.01))

        @smp.step
        def train(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
            loss = nn.functional.cross_entropy(model(x), y)
            model.backward(loss)
            return loss

        self.train = train
        torch.manual_seed(seed + 1000)

    def wrapped(self, optimizer: torch.optim.Optimizer) -> Any:
        wrap = getattr(self.smp, "DistributedOptimizer", None)
        if wrap is not None:
            return wrap(optimizer)
        self.smp.state.optimizer = optimizer
        return optimizer

    def run(self, begin: int, end: int) -> list[float]:
        losses = []
        for number in range(begin, end):
            drawn = torch.Generator().manual_seed(100 * number + self.smp.dp_rank())
            x, y = torch.randn(8, 8, generator=drawn), torch.randint(3, (8,), generator=drawn)
            self.optimizer.zero_grad()
            loss = self.train(self.model, x, y)
            self.optimizer.step()
            losses.append(float(loss.reduce_mean()))
        return losses

    def weights(self) -> dict[str, Any]:
        return {name: value.tolist() for name, value in self.model.local_state_dict().items() if name[0] != "_"}

    def whole(self) -> dict[str, Any]:
        return {name: value.tolist() for name, value in self.model.state_dict().items()}
