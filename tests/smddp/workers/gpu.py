"""Collectives on tensors of a GPU, which ranks may share; see test_gpu.py."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import smdistributed.dataparallel.torch.torch_smddp as torch_smddp
import torch
import torch.distributed as dist
from torch import nn

GPU = torch.device("cuda:0")
# Some tenths of a second.
LONG = 400_000_000
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)


class Checks:
    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def own(self, count: int, rank: int | None = None) -> torch.Tensor:
        return torch.arange(count) % 5 + (self.rank if rank is None else rank) + 1

    def everyone(self, count: int) -> torch.Tensor:
        return torch.stack([self.own(count, rank).double() for rank in range(self.size)])

    def reductions(self) -> None:
        ops: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
            dist.ReduceOp.SUM: lambda all_of: all_of.sum(0),
            dist.ReduceOp.AVG: lambda all_of: all_of.mean(0),
            dist.ReduceOp.MAX: lambda all_of: all_of.amax(0),
            dist.ReduceOp.MIN: lambda all_of: all_of.amin(0),
            dist.ReduceOp.PRODUCT: lambda all_of: all_of.prod(0),
        }
        for count in (1, 3, 1001, 300_000, 5_000_003):
            for op, wanted in ops.items():
                tensor = self.own(count).float().to(GPU)
                dist.all_reduce(tensor, op)
                assert torch.allclose(tensor.cpu().double(), wanted(self.everyone(count))), (count, op)
            for dtype in DTYPES:
                tensor = self.own(count).to(dtype).to(GPU)
                dist.all_reduce(tensor)
                assert torch.allclose(tensor.cpu().double(), self.everyone(count).sum(0), rtol=1e-2), (count, dtype)
        tensor = self.own(1001).float().to(GPU)
        premul: Any = dist._make_nccl_premul_sum  # type: ignore[attr-defined]
        dist.all_reduce(tensor, premul(0.5))
        assert torch.allclose(tensor.cpu().double(), self.everyone(1001).sum(0) / 2)

    def layouts(self) -> str:
        """What is said of a transposed tensor, "" where it is summed."""
        tensor = self.own(1000).float().to(GPU).reshape(10, 100).t()
        try:
            dist.all_reduce(tensor)
        except ValueError as error:
            return str(error)
        assert torch.equal(tensor.cpu().double(), self.everyone(1000).sum(0).reshape(10, 100).t())
        return ""

    def others(self) -> None:
        """The rest of what our core does, whoever does it here."""
        mine = self.own(1000).float().to(GPU)
        outs = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(outs, mine)
        assert torch.equal(torch.stack(outs).cpu().double(), self.everyone(1000))
        whole = torch.empty(1000 * self.size, device=GPU)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole.cpu().double(), self.everyone(1000).flatten())
        for root in range(self.size):
            tensor = mine.clone()
            dist.broadcast(tensor, root)
            assert torch.equal(tensor.cpu(), self.own(1000, root).float())
        tensor = mine.clone()
        dist.reduce(tensor, 0)
        assert self.rank != 0 or torch.equal(tensor.cpu().double(), self.everyone(1000).sum(0))
        shard = torch.empty_like(mine)
        dist.reduce_scatter(shard, [mine.clone() for _ in range(self.size)])
        assert torch.equal(shard.cpu().double(), self.everyone(1000).sum(0))
        dist.reduce_scatter_tensor(shard, mine.repeat(self.size))
        assert torch.equal(shard.cpu().double(), self.everyone(1000).sum(0))
        objects: list[Any] = [None] * self.size
        dist.all_gather_object(objects, self.rank)
        assert objects == list(range(self.size))
        dist.barrier()

    def order_of_streams(self) -> bool:
        """The operation comes behind the caller's stream and before what follows it; neither the call nor what is
        dropped at once waits for the GPU. Whether the stream was still at work when the call came back."""
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
            tensor = torch.full((1 << 20,), float(self.rank + 1), device=GPU)
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            busy = not side.query()
            work.wait()
            doubled = tensor * 2
            del tensor, work
            # The allocator gives its memory to whoever asks next.
            torch.full((1 << 20,), -1.0, device=GPU)
        side.synchronize()
        total = self.size * (self.size + 1) / 2
        assert set(doubled.tolist()) == {2 * total}
        return busy

    def futures(self) -> None:
        tensor = self.own(1000).float().to(GPU)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        doubled = work.get_future().then(lambda future: future.value()[0] * 2).wait()
        assert torch.equal(doubled.cpu().double(), self.everyone(1000).sum(0) * 2)

    def many(self) -> None:
        tensors = [self.own(10_000).float().to(GPU) * (i + 1) for i in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for i, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
            assert work is not None
            work.wait()
            assert torch.equal(tensor.cpu().double(), self.everyone(10_000).sum(0) * (i + 1))

    def graph(self) -> str:
        """What capturing says, "" where it is possible; then replays count."""
        tensor = torch.ones(8, device=GPU)
        dist.all_reduce(tensor)
        tensor.fill_(1)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                dist.all_reduce(tensor)
        except NotImplementedError as error:
            torch.cuda.synchronize()
            dist.all_reduce(tensor)  # all is as before
            assert tensor.tolist() == [self.size] * 8
            return str(error)
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        assert tensor.tolist() == [self.size**2] * 8
        return ""

    def messages(self) -> str:
        """What NCCL alone can do here: "" where it does."""
        try:
            own = torch.full((self.size,), float(self.rank), device=GPU)
            received = torch.empty_like(own)
            dist.all_to_all_single(received, own)
            assert received.tolist() == [float(rank) for rank in range(self.size)]
            if self.rank < 2:
                tensor = torch.full((5,), float(self.rank), device=GPU)
                message = dist.P2POp(dist.isend if self.rank == 0 else dist.irecv, tensor, 1 - self.rank)
                for work in dist.batch_isend_irecv([message]):
                    work.wait()
                assert tensor.tolist() == [0.0] * 5
        except NotImplementedError as error:
            return str(error)
        return ""

    def subgroup(self) -> None:
        group = dist.new_group([0, 1])
        if self.rank < 2:
            tensor = torch.full((1001,), self.rank + 1.0, device=GPU)
            dist.all_reduce(tensor, group=group)
            assert set(tensor.tolist()) == {3.0}
        dist.destroy_process_group(group) if self.rank < 2 else None

    def crossed(self) -> int:
        """Bytes that the core all-reduced of 4000."""
        stats: Any = torch_smddp.stats()
        before = stats["operations"].get("all_reduce", {}).get("bytes", 0)
        dist.all_reduce(torch.ones(1000, device=GPU))
        stats = torch_smddp.stats()
        return int(stats["operations"].get("all_reduce", {}).get("bytes", 0) - before)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8)).to(GPU)


def steps(network: nn.Module, batches: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in network.parameters()]


def training(checks: Checks) -> None:
    """DDP with synchronised batch norm, on all ranks together, does what one process does on the whole batch."""
    torch.manual_seed(1)
    batches = torch.randn(3, checks.size * 16, 32, device=GPU)
    alone = steps(model(), batches)
    part = batches[:, checks.rank * 16 : checks.rank * 16 + 16]
    convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
    synchronized = convert(model())
    parallel = nn.parallel.DistributedDataParallel(synchronized, device_ids=[0], bucket_cap_mb=1)
    for mine, wanted in zip(steps(parallel, part), alone, strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-3, atol=1e-5)
    fully_sharded(checks, batches, part)


def fully_sharded(checks: Checks, batches: torch.Tensor, part: torch.Tensor) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(GPU)
    torch.manual_seed(0)
    sharded = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(GPU)
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer)
    wanted = steps(alone, batches)
    steps(sharded, part)
    for parameter, right in zip(sharded.parameters(), wanted, strict=True):
        whole: Any = parameter
        assert torch.allclose(whole.full_tensor().detach().cpu(), right, rtol=1e-3, atol=1e-5)


def death(checks: Checks) -> dict[str, Any]:
    """The last rank dies; the others hear of it although the GPU waits for it."""
    dist.all_reduce(torch.ones(1000, device=GPU))
    torch.cuda.synchronize()
    if checks.rank == checks.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        for _ in range(3):
            dist.all_reduce(torch.ones(1000, device=GPU))
            torch.cuda.synchronize()
    except RuntimeError as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - start}
    raise AssertionError("nobody missed the rank that died")


def main() -> None:
    torch.cuda.set_device(GPU)
    dist.init_process_group("smddp", timeout=timedelta(seconds=60))
    checks = Checks()
    if "death" in sys.argv:
        print(json.dumps(death(checks)))
        sys.stdout.flush()
        os._exit(0)
    report: dict[str, Any] = {"path": torch_smddp.path(), "crossed": checks.crossed()}
    checks.reductions()
    report["layouts"] = checks.layouts()
    checks.others()
    report["busy"] = checks.order_of_streams()
    checks.futures()
    checks.many()
    report["graph"] = checks.graph()
    report["messages"] = checks.messages()
    checks.subgroup()
    training(checks)
    dist.destroy_process_group()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
