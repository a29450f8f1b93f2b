"""Sums on hosts with links of their own, against the definition in the order that smddp states; reports the error."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from smdistributed.dataparallel.torch import torch_smddp

COUNTS = (1, 1000, 70_001, 3_000_017)


def inputs(count: int, size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(count, generator=generator) for _ in range(size)]


def in_order(tensors: list[torch.Tensor], each: int) -> torch.Tensor:
    """In rank order inside each host, then in host order, or in pairs if there are 4, 8 ... hosts."""
    hosts = []
    for first in range(0, len(tensors), each):
        total = tensors[first].clone()
        for tensor in tensors[first + 1 : first + each]:
            total += tensor
        hosts.append(total)
    if len(hosts).bit_count() == 1:
        while len(hosts) > 1:
            hosts = [first + second for first, second in zip(hosts[::2], hosts[1::2], strict=True)]
    total = hosts[0]
    for other in hosts[1:]:
        total = total + other
    return total


def moves(rank: int, size: int) -> None:
    """What is only moved arrives as it was."""
    for count in COUNTS:
        parts = inputs(count, size)
        gathered = [torch.empty(count) for _ in range(size)]
        dist.all_gather(gathered, parts[rank])
        assert all(torch.equal(found, part) for found, part in zip(gathered, parts, strict=True)), count
        news = parts[rank].clone()
        dist.broadcast(news, size - 1)
        assert torch.equal(news, parts[size - 1]), count


def sums(rank: int, size: int, each: int, exact: bool) -> float:
    """The largest error of an all-reduce, relative to the sum of magnitudes."""
    worst = 0.0
    for count in COUNTS:
        parts = inputs(count, size)
        found = parts[rank].clone()
        dist.all_reduce(found)
        expected = in_order(parts, each)
        magnitude = torch.stack(parts).abs().sum(0)
        worst = max(worst, float(((found - expected).abs() / magnitude).max()))
        others = [torch.empty(count) for _ in range(size)]
        dist.all_gather(others, found)
        assert all(torch.equal(other, found) for other in others), "ranks hold different bits"
        if exact:
            assert torch.equal(found, expected), count
    return worst


def mean_error(rank: int, size: int, steps: int) -> float:
    """Of the mean of many all-reduces of one buffer whose contents are always the same."""
    parts = inputs(70_001, size)
    exact = torch.stack(parts).double().sum(0)
    bucket = torch.empty(70_001)
    mean = torch.zeros(70_001, dtype=torch.float64)
    for _ in range(steps):
        bucket.copy_(parts[rank])
        dist.all_reduce(bucket)
        mean += bucket.double() / steps
    return float(((mean - exact).abs() / torch.stack(parts).abs().sum(0)).max())


def overtaking(rank: int, size: int) -> bool:
    """Whether a gather in a group of its own ends while reductions that were called before it are under way."""
    gathers = dist.new_group(backend="smddp")
    large = [torch.ones(1 << 20) for _ in range(8)]
    reductions = [dist.all_reduce(tensor, async_op=True) for tensor in large]
    found = [torch.empty(1000) for _ in range(size)]
    gather = dist.all_gather(found, torch.full((1000,), float(rank)), group=gathers, async_op=True)
    assert gather is not None
    gather.wait()
    overtook = not reductions[-1].is_completed()
    for reduction in reductions:
        reduction.wait()
    assert all(bool((tensor == size).all()) for tensor in large)
    assert all(bool((part == r).all()) for r, part in enumerate(found))
    return overtook


def main() -> None:
    task = sys.argv[1]
    dist.init_process_group("smddp")
    rank, size = dist.get_rank(), dist.get_world_size()
    each = int(os.environ["LOCAL_WORLD_SIZE"])
    report: dict[str, object] = {"path": torch_smddp.path()}
    if task == "operations":
        exact = os.environ.get("SMDDP_WIRE_DTYPE", "float32") == "float32"
        moves(rank, size)
        report["error"] = sums(rank, size, each, exact)
    elif task == "volume":
        tensor = torch.ones(int(sys.argv[2]))
        dist.all_reduce(tensor)
    elif task == "overtaking":
        report["overtook"] = overtaking(rank, size)
    else:
        report["error"] = mean_error(rank, size, int(sys.argv[2]))
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(report))


main()
