"""A script of the releases 1.0 to 1.3, every function of theirs; reports what it saw."""

from __future__ import annotations

import json
import os
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import smdistributed.dataparallel.torch.distributed as dist
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
    from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as SameClass

import smdistributed.dataparallel.torch as package
import torch
import torch.distributed
from torch import nn


def collectives(rank: int, size: int) -> None:
    ranks = torch.arange(float(size))
    values = {
        dist.ReduceOp.AVERAGE: ranks.mean(),
        dist.ReduceOp.SUM: ranks.sum(),
        dist.ReduceOp.MIN: ranks.min(),
        dist.ReduceOp.MAX: ranks.max(),
    }
    for op, value in values.items():
        tensor = torch.full((1000,), float(rank))
        assert dist.all_reduce(tensor, op=op, group=dist.group.WORLD) is None
        assert tensor.eq(value).all(), (op, tensor[0], value)
    tensor = torch.full((1000,), float(rank))
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    assert tensor.eq(ranks.sum()).all()
    # Old and new calls in one script.
    torch.distributed.all_reduce(tensor)
    assert tensor.eq(ranks.sum() * size).all()

    tensor = torch.full((7,), rank)
    dist.broadcast(tensor, src=size - 1)
    assert tensor.eq(size - 1).all()
    gathered = [torch.empty(5) for _ in range(size)]
    dist.all_gather(gathered, torch.full((5,), float(rank)))
    assert [int(one[0]) for one in gathered] == list(range(size))
    swapped = torch.empty(size)
    dist.all_to_all_single(swapped, ranks + 10 * rank)
    assert swapped.equal(10 * ranks + rank)
    # Rank r sends s + 1 rows to rank s.
    rows = [one + 1 for one in range(size)]
    uneven = torch.empty(size * (rank + 1))
    dist.all_to_all_single(uneven, torch.full((sum(rows),), float(rank)), [rank + 1] * size, rows)
    assert uneven.equal(ranks.repeat_interleave(rank + 1))
    dist.barrier()


def train(model: nn.Module, shard: torch.Generator, steps: int, divide: int) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps * divide):
        model(torch.randn(8, 6, generator=shard)).square().mean().backward()
        if step % divide == divide - 1:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def ddp(rank: int, divide: int) -> float:
    """How far the old class on smddp ends from torch's on gloo."""

    def net() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 3))

    def shard() -> torch.Generator:
        return torch.Generator().manual_seed(rank)

    # A script for GPUs: it names its device, and says where it stands in each accumulated step to nobody.
    options = {"gradient_accumulation_steps": divide} if divide > 1 else {"bucket_cap_mb": 1}
    ours = DistributedDataParallel(net(), device_ids=[rank], output_device=rank, broadcast_buffers=False, **options)
    result = train(ours, shard(), 4, divide)
    gloo = torch.distributed.new_group(backend="gloo")
    theirs = nn.parallel.DistributedDataParallel(net(), process_group=gloo)
    reference, generator = theirs, shard()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        with reference.no_sync():
            for _ in range(divide - 1):
                reference(torch.randn(8, 6, generator=generator)).square().mean().backward()
        reference(torch.randn(8, 6, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = torch.cat([parameter.detach().flatten() for parameter in reference.parameters()])
    # A thread of gloo that lets go of a tensor while the interpreter ends would abort the process; destroying a group
    # waits for its threads, if nobody else holds it. smddp's own is left as old scripts leave it.
    del theirs, reference
    torch.distributed.destroy_process_group(gloo)
    return (result - expected).abs().max().item()


def main() -> None:
    assert SameClass is DistributedDataParallel
    assert dist.is_available()
    assert not dist.is_initialized()
    # All arguments are ignored, as they were.
    dist.init_process_group("nccl", init_method="file:///nowhere", world_size=99)
    assert dist.is_initialized()
    assert torch.distributed.get_backend() == "smddp"
    rank, size = dist.get_rank(), dist.get_world_size(dist.group.WORLD)
    assert [rank, size, dist.get_local_rank()] == [int(os.environ[x]) for x in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    assert (package.get_rank(), package.get_world_size(), package.get_local_rank()) == (
        rank,
        size,
        int(os.environ["LOCAL_RANK"]),
    )
    collectives(rank, size)
    found = [ours for ours in caught if issubclass(ours.category, FutureWarning)]
    report = {
        "warnings": [[str(one.message), os.path.basename(one.filename)] for one in found],  # noqa: PTH119
        "plain": ddp(rank, 1),
        "accumulated": ddp(rank, 3),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
