"""`smp.amp.GradScaler` in the published recipe: scale in the step function, step and update after it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn

PIPELINE = '{"partitions": 2, "microbatches": 2, "auto_partition": false, "default_partition": 0%s}'


def build(parts: Any = None) -> nn.Sequential:
    torch.manual_seed(0)
    if parts is None:
        return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1))
    first = nn.Linear(6, 10)
    with parts.partition(1):
        return nn.Sequential(first, nn.Tanh(), nn.Linear(10, 1))


def batch_of(step: int) -> torch.Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))


def scaled(spoil: int) -> dict[str, Any]:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    plain = build(smp)
    model = smp.DistributedModel(plain)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(plain.parameters(), lr=0.01))
    scaler = smp.amp.GradScaler(init_scale=64.0, growth_interval=2)

    @smp.step
    def train(model: Any, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).pow(2).mean()
        model.backward(scaler.scale(loss))
        return loss

    scales = []
    for step in range(4):
        optimizer.zero_grad()
        train(model, batch_of(step).chunk(smp.dp_size())[smp.dp_rank()])
        if step == spoil and smp.pp_rank() == 1:
            next(model.local_parameters()).grad = torch.full((1, 10), math.nan)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.local_parameters(), 100.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {"scales": scales, "weights": model.state_dict()}


def alone(skip: int) -> dict[str, torch.Tensor]:
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        if step != skip:
            optimizer.zero_grad()
            model(batch_of(step)).pow(2).mean().backward()
            optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(
    ("spoil", "size", "extra", "scales"),
    [
        (-1, 2, "", [64, 128, 128, 256]),
        (1, 2, "", [64, 32, 32, 64]),
        (2, 4, ', "ddp": true, "shard_optimizer_state": true', [64, 128, 64, 64]),
    ],
)
def test_scaled_training(spoil: int, size: int, extra: str, scales: list[float]) -> None:
    """Statement 18 and C7: a gradient that is not finite in one partition makes all leave the step out."""
    expected = alone(skip=spoil)
    for one in run_ranks(scaled, size, spoil, config=PIPELINE % extra):
        assert one.report["scales"] == scales
        for name, value in expected.items():
            assert torch.allclose(one.report["weights"][name], value, rtol=1e-4, atol=1e-6)
