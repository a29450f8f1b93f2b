"""A client as the vendor's container tests have one: a network on digits through all calls, to the same thresholds.

It trains, evaluates with values that are no tensors, averages losses, saves in parts and whole. Thresholds of the loss
on digits not seen: 0.08 in one replica, 0.18 with replicas, which must agree.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from numerics_models import digits
from smp_jobs import run_ranks
from torch import nn
from torch.nn import functional

BATCH, TRAINED, EPOCHS = 32, 1472, 6
Pair = tuple[torch.Tensor, torch.Tensor]


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        return torch.flatten(functional.max_pool2d(x, 2), 1)


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = Features()
        self.hidden = nn.Linear(288, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.log_softmax(self.out(functional.relu(self.hidden(self.features(x)))), 1)


def client(folder: str) -> tuple[float, float]:
    """Return the losses on the last digits, of the trained model and of a plain one that has its saved weights."""
    import smdistributed.modelparallel.torch as smp
    from torch.optim.lr_scheduler import StepLR

    smp.init()
    torch.manual_seed(1)

    @smp.step
    def train_step(model: Any, data: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(data)
        loss = functional.nll_loss(output, target, reduction="mean")
        model.backward(loss)
        return output, loss

    @smp.step
    def test_step(model: Any, data: torch.Tensor, target: torch.Tensor) -> tuple[float, int]:
        output = model(data)
        correct = output.argmax(dim=1).eq(target).sum().item()
        return functional.nll_loss(output, target, reduction="sum").item(), int(correct)

    images, classes = digits()
    mine = slice(smp.dp_rank(), TRAINED, smp.dp_size())
    batches = list(zip(images[mine].split(BATCH), classes[mine].split(BATCH), strict=True))  # type: ignore[no-untyped-call]
    plain = Digits()
    optimizer = torch.optim.Adadelta(plain.parameters(), lr=2.0)
    model = smp.DistributedModel(plain)
    optimizer = smp.DistributedOptimizer(optimizer)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(EPOCHS):
        model.train()
        for data, target in batches:
            optimizer.zero_grad()
            _, loss = train_step(model, data, target)
            assert math.isfinite(loss.reduce_mean().item())
            optimizer.step()
        scheduler.step()
    model.eval()
    unseen = images[TRAINED : TRAINED + 320], classes[TRAINED : TRAINED + 320]
    with torch.no_grad():
        losses, correct = test_step(model, *unseen)
    assert len(losses) == smp.num_microbatches() == len(correct)
    return sum(losses) / 320, _loss_of_saved(smp, model, optimizer, unseen, folder)


def _loss_of_saved(
    smp: Any, model: Any, optimizer: Any, unseen: tuple[torch.Tensor, torch.Tensor], folder: str
) -> float:
    if smp.dp_rank() == 0:
        smp.save({"model": model.local_state_dict(), "optimizer": optimizer.local_state_dict()}, f"{folder}/part")
        smp.save({"model": model.state_dict()}, f"{folder}/whole", partial=False)
    smp.barrier()
    again = Digits()
    again.load_state_dict(smp.load(f"{folder}/whole", partial=False)["model"])
    with torch.no_grad():
        return functional.nll_loss(again(unseen[0]), unseen[1]).item()


@pytest.mark.parametrize(("ranks", "threshold"), [(2, 0.08), (4, 0.18)])
def test_thresholds(ranks: int, threshold: float, tmp_path: Path) -> None:
    config = json.dumps({"partitions": 2, "microbatches": 4, "pipeline": "interleaved", "ddp": ranks > 2})
    found = [one.report for one in run_ranks(client, ranks, str(tmp_path), config=config)]
    trained = [loss for loss, _ in found]
    assert all(math.isclose(loss, trained[0]) for loss in trained)
    assert trained[0] < threshold
    assert all(math.isclose(loss, trained[0], rel_tol=1e-4) for _, loss in found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part_0", "part_1", "whole"]
