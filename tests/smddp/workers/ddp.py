"""Trains the same models on gloo and on smddp, from one start, on the same shards; reports how far apart they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

STEPS = 25
if TYPE_CHECKING:  # Python 3.8 cannot evaluate it
    Setup = Callable[[DistributedDataParallel, dist.ProcessGroup], None]


class Net(nn.Module):
    """Convolution, batch norm (buffers), dense layers, and one that a step may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.sometimes = nn.Linear(8 * 36, 8 * 36)
        self.head = nn.Sequential(nn.Linear(8 * 36, 300), nn.ReLU(), nn.Linear(300, 10))

    def forward(self, images: torch.Tensor, skip: bool) -> torch.Tensor:
        found = self.features(images)
        result: torch.Tensor = self.head(found if skip else self.sometimes(found))
        return result


def train(group: dist.ProcessGroup, setup: Setup | None, unused: bool) -> torch.Tensor:
    """All parameters and buffers in one vector."""
    torch.manual_seed(1)
    model = DistributedDataParallel(
        Net(), process_group=group, find_unused_parameters=unused, bucket_cap_mb=1, gradient_as_bucket_view=not unused
    )
    if setup:
        setup(model, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    shard = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(STEPS):
        images = torch.randn(16, 1, 8, 8, generator=shard)
        labels = torch.randint(0, 10, (16,), generator=shard)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images, unused and step % 2 == 0), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    state = [value.flatten().float() for value in model.module.state_dict().values()]
    return torch.cat(state)


def fp16(model: DistributedDataParallel, group: dist.ProcessGroup) -> None:
    model.register_comm_hook(group, default_hooks.fp16_compress_hook)


def power_sgd(model: DistributedDataParallel, group: dist.ProcessGroup) -> None:
    state = powerSGD_hook.PowerSGDState(process_group=group, matrix_approximation_rank=2, start_powerSGD_iter=5)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def sparse_embeddings(group: dist.ProcessGroup) -> torch.Tensor:
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.EmbeddingBag(50, 4, sparse=True), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.tensor([[step + dist.get_rank(), 7]])).sum().backward()
        optimizer.step()
    weight: torch.Tensor = model.module.weight
    return weight.detach()


def main() -> None:
    dist.init_process_group("smddp")
    assert dist.group.WORLD is not None
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    assert gloo is not None
    report: dict[str, float] = {}
    cases: list[tuple[str, Setup | None, bool]] = [
        ("plain", None, False),
        ("unused", None, True),
        ("fp16", fp16, False),
    ]
    for name, setup, unused in cases:
        mine, theirs = train(ours, setup, unused), train(gloo, setup, unused)
        report[name] = (mine - theirs).abs().max().item()
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine, group=gloo)
        # Batch norm's statistics are those of rank 0 only after the next forward pass: compare what was trained.
        trained = sum(parameter.numel() for parameter in Net().features[0].parameters())
        assert all(torch.equal(other[:trained], mine[:trained]) for other in everyone), "ranks differ"
    report["sparse"] = (sparse_embeddings(ours) - sparse_embeddings(gloo)).abs().max().item()
    assert train(ours, power_sgd, False).isfinite().all()
    dist.destroy_process_group()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
