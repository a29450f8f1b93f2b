"""Small models, and one way to train them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

BATCH = 6
WIDTH = 12


class Net(nn.Module):
    """Dense layers, batch norm (buffers), and a branch that a step may leave out."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 70)
        self.norm = nn.BatchNorm1d(70) if norm else nn.LayerNorm(70)
        self.sometimes = nn.Linear(70, 70)
        self.last = nn.Linear(70, 5)

    def forward(self, inputs: torch.Tensor, skip: bool = False) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(inputs)))
        result: torch.Tensor = self.last(hidden if skip else self.sometimes(hidden))
        return result


def net(norm: bool = True, dtype: torch.dtype = torch.float32) -> Net:
    """The same weights on every call."""
    torch.manual_seed(11)
    return Net(norm).to(dtype)


def batches(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """This rank's share of the data."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [torch.randn(BATCH, WIDTH, generator=generator).to(dtype) for _ in range(count)]


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def train(
    model: nn.Module,
    steps: int = 5,
    optimizer: torch.optim.Optimizer | None = None,
    forward: Callable[[torch.Tensor, int], torch.Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[float]:
    """Losses; the model is trained in place."""
    chosen = optimizer or sgd(model)
    losses = []
    for step, batch in enumerate(batches(steps, dtype)):
        chosen.zero_grad()
        loss = (forward(batch, step) if forward else model(batch)).float().square().mean()
        loss.backward()
        chosen.step()
        losses.append(loss.item())
    return losses


def weights(model: nn.Module) -> dict[str, Any]:
    """Trained parameters by name. Buffers of batch norm are each rank's own until the next forward pass."""
    return dict(model.named_parameters())
