"""What benchmarks/pipeline.py compares with: schedules of torch.distributed.pipelining, and the model on one rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
from pipeline_models import Work
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Pipelined:
    """A rank of a pipeline of torch's, with gloo between the ranks."""

    def __init__(self, schedule: str, work: Work, microbatches: int) -> None:
        dist.init_process_group("gloo")
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.work = work
        self.module = work.stages[self.rank]
        stage = PipelineStage(self.module, self.rank, self.last + 1, torch.device("cpu"))
        self.schedule = SCHEDULES[schedule](stage, microbatches, loss_fn=work.loss)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)

    def meet(self) -> None:
        dist.barrier()

    def step(self) -> float | None:
        """One training step; its loss on the last rank."""
        self.optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if self.rank == 0:
            self.schedule.step(self.work.inputs)
        elif self.rank == self.last:
            self.schedule.step(target=self.work.targets, losses=losses)
        else:
            self.schedule.step()
        self.optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).mean().item() if losses else None

    def close(self) -> None:
        dist.destroy_process_group()


class Single:
    """The whole model in this process, micro-batch by micro-batch."""

    def __init__(self, work: Work, microbatches: int, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        self.work, self.microbatches = work, microbatches
        self.module = nn.Sequential(*work.stages)
        self.optimizer = optimizer(self.module.parameters(), lr=0.01)  # type: ignore[call-arg]

    def meet(self) -> None:
        """Nobody else is there."""

    def step(self) -> float | None:
        self.optimizer.zero_grad()
        losses = []
        parts = zip(self.work.inputs.chunk(self.microbatches), self.work.targets.chunk(self.microbatches), strict=True)
        for values, targets in parts:
            loss = self.work.loss(self.module(values), targets)
            (loss / self.microbatches).backward()
            losses.append(loss.detach())
        self.optimizer.step()
        return torch.stack(losses).mean().item()

    def close(self) -> None:
        """Nothing is open."""
