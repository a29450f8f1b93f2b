"""The models of benchmarks/pipeline.py. Each is a list of stages, so that every library runs the same modules.

`sleep`: a stage's forward sleeps 20 ms, its backward 40 ms: the schedule alone is measured, whatever the processors do.
`compute`: a small decoder of transformer blocks. `memory`: parameters are all that matters. `hop`: nothing does.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn

FORWARD_SECONDS, BACKWARD_SECONDS = 0.020, 0.040
WIDTH, BLOCKS, HEADS, WORDS, LENGTH, BATCH = 256, 8, 8, 1000, 64, 32
MEMORY_WIDTH, MEMORY_LAYERS, MEMORY_BATCH = 2048, 12, 64
HOP_WIDTH = 8


class Slept(torch.autograd.Function):
    """Takes the time of a layer and no processor."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_SECONDS)
        ctx.save_for_backward(values, weight)
        return values * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        time.sleep(BACKWARD_SECONDS)
        values, weight = ctx.saved_tensors
        return gradient * weight, (gradient * values).sum(0)


class SleepingStage(nn.Module):
    """A stage of known length."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Slept.apply(values, self.weight)  # type: ignore[no-untyped-call]
        return result


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        batch, length, width = values.shape
        heads = self.qkv(self.norm_1(values)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        down: torch.Tensor = self.down(F.gelu(self.up(self.norm_2(values))))
        return values + down


def mean_loss(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def word_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


class Work(NamedTuple):
    """A model in stages, one batch for it, and its loss."""

    stages: list[nn.Sequential]
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: Any


def build(part: str, ranks: int, microbatches: int) -> Work:
    """The model of a part, cut for `ranks` stages; equal on every rank."""
    torch.manual_seed(0)
    if part == "sleep":
        values = torch.rand(4 * microbatches, 64)
        return Work([nn.Sequential(SleepingStage()) for _ in range(ranks)], values, values, mean_loss)
    if part == "compute":
        words = torch.randint(0, WORDS, (2, BATCH, LENGTH))
        layers = [nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, WORDS)]
        half = 1 + BLOCKS // 2
        return Work([nn.Sequential(*layers[:half]), nn.Sequential(*layers[half:])], words[0], words[1], word_loss)
    if part == "memory":
        linear = [nn.Linear(MEMORY_WIDTH, MEMORY_WIDTH) for _ in range(MEMORY_LAYERS)]
        values = torch.randn(MEMORY_BATCH, MEMORY_WIDTH)
        return Work([nn.Sequential(*linear)], values, values, mean_loss)
    raise ValueError(f"no such part: {part}")
