"""Collectives on tensors of a device whose streams are asynchronous: fake_device, built by the test."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import signal
import sys
import time
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import smdistributed.dataparallel.torch.torch_smddp as torch_smddp
import torch
import torch.distributed as dist
from smdistributed.dataparallel.torch import _fallbacks
from torch._C import _distributed_c10d as c10d

DEVICE = "privateuseone"
COUNT = 1000


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("fake_device", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # What torch's Python asks of a device.
    torch_module = ModuleType(f"torch.{DEVICE}")
    vars(torch_module).update(
        _lazy_init=lambda: None, is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0
    )
    register: Any = torch._register_device_module
    register(DEVICE, torch_module)
    # A stream that lets go of a tensor of Python's after the interpreter has ended would end the process.
    atexit.register(module.synchronize)
    return module


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is still on its way when this returns."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE).copy_(tensor, non_blocking=True)


class Checks:
    def __init__(self, fake: Any) -> None:
        self.fake = fake
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.own = [torch.arange(COUNT, dtype=torch.float32) * (rank + 1) for rank in range(self.size)]
        self.total = torch.stack(self.own).sum(0)

    def mine(self) -> torch.Tensor:
        return on_device(self.own[self.rank])

    def order_of_streams(self) -> None:
        """The operation waits for the caller's stream, the caller does not; afterwards the stream waits for it."""
        for stream in (0, 2):
            self.fake.set_stream(stream)
            release = self.fake.hold(stream)
            tensor = self.mine()
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            assert not self.fake.idle(stream)
            assert not work.is_completed()
            release()
            work.wait()
            assert torch.equal(tensor.cpu(), self.total), stream
        self.fake.set_stream(0)

    def futures(self) -> None:
        """A callback finds the outputs in order with its own current stream."""
        tensor = self.mine()
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        doubled = work.get_future().then(lambda future: future.value()[0].cpu() * 2)
        assert torch.equal(doubled.wait(), self.total * 2)

    def memory(self) -> None:
        """Tensors are recorded on the stream that copies them, so that they can be dropped at once."""
        before = self.fake.recorded()
        out = torch.empty(COUNT * self.size, device=DEVICE)
        dist.all_gather_into_tensor(out, self.mine())
        assert self.fake.recorded() >= before + 2
        assert torch.equal(out.cpu(), torch.cat(self.own))

    def operations(self) -> None:
        outs = [torch.empty(COUNT, device=DEVICE) for _ in range(self.size)]
        dist.all_gather(outs, self.mine())
        assert all(torch.equal(out.cpu(), own) for out, own in zip(outs, self.own, strict=True))
        for root in range(self.size):
            tensor = self.mine()
            dist.broadcast(tensor, root)
            assert torch.equal(tensor.cpu(), self.own[root])
        tensor = self.mine()
        dist.reduce(tensor, 0)
        assert torch.equal(tensor.cpu(), self.total if self.rank == 0 else self.own[self.rank])
        shard = torch.empty(COUNT, device=DEVICE)
        dist.reduce_scatter(shard, [self.mine() for _ in range(self.size)])
        assert torch.equal(shard.cpu(), self.total)
        whole = on_device(self.own[self.rank].repeat(self.size))
        dist.reduce_scatter_tensor(shard, whole)
        assert torch.equal(shard.cpu(), self.total)
        tensor = on_device(self.own[self.rank].reshape(10, 100)).t()
        dist.all_reduce(tensor)
        assert torch.equal(tensor.cpu(), self.total.reshape(10, 100).t())
        many = [self.mine() for _ in range(5)]
        works = [dist.all_reduce(each, async_op=True) for each in many]
        for work in works:
            assert work is not None
            work.wait()
        assert all(torch.equal(each.cpu(), self.total) for each in many)

    def pieces(self) -> None:
        """Large ones go in pieces, whatever their layout: it need not be the same on all ranks."""
        count = 3_000_004
        own = torch.arange(count, dtype=torch.float32) % 11 + self.rank
        tensor = on_device(own)
        if self.rank == 0:
            tensor = on_device(own.reshape(4, -1).t().contiguous()).t()
        dist.all_reduce(tensor)
        total = self.size * (torch.arange(count) % 11) + sum(range(self.size))
        assert torch.equal(tensor.cpu().reshape(-1), total.float())

    def split(self) -> None:
        """torch's own function, which splits only groups that are bound to a device, by a copy of their options."""
        world = dist.group.WORLD
        assert world is not None
        world.bound_device_id = torch.device(DEVICE, 0)
        split_group: Any = dist.split_group
        # All ranks, and two groups where there are enough of them.
        parts = [[0, 1], list(range(2, self.size))][: self.size - 1]
        ranks = parts[self.rank // 2]
        # A device without hooks in C++ is no accelerator to torch.
        accelerator = torch.accelerator
        with (
            patch.object(accelerator, "is_available", lambda: True),
            patch.object(accelerator, "current_accelerator", lambda: torch.device(DEVICE)),
        ):
            part = split_group(split_ranks=parts)
        tensor = self.mine()
        dist.all_reduce(tensor, group=part)
        assert torch.equal(tensor.cpu(), torch.stack([self.own[rank] for rank in ranks]).sum(0))
        world.bound_device_id = None

    def refusals(self) -> dict[str, str]:
        self.fake.capture(True)
        graph = self.refusal(lambda: dist.all_reduce(self.mine()))
        self.fake.capture(False)
        exchange = self.refusal(lambda: dist.all_to_all_single(self.mine()[: self.size], self.mine()[: self.size]))
        mixed = self.refusal(lambda: dist.all_gather([torch.empty(COUNT) for _ in range(self.size)], self.mine()))
        return {"graph": graph, "exchange": exchange, "mixed": mixed}

    def refusal(self, call: Any) -> str:
        try:
            call()
        except (NotImplementedError, ValueError, RuntimeError) as error:
            return str(error)
        return ""


class RailChecks(Checks):
    """Every rank with a device of its own, on several hosts: what NCCL does, FakeNccl does."""

    def sum_of(self, own: list[torch.Tensor], op: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        tensor = on_device(own[self.rank].to(dtype))
        dist.all_reduce(tensor, op)
        return tensor.cpu()

    def reductions(self) -> None:
        """Shards of all sizes: equal ones, with a rest, fewer elements than ranks, none."""
        for count in (1000, 1001, 3, 1, 0):
            own = [(torch.arange(count) % 5 + rank + 1.0).double() for rank in range(self.size)]
            everyone = torch.stack(own)
            for op, wanted in (
                (dist.ReduceOp.SUM, everyone.sum(0)),
                (dist.ReduceOp.AVG, everyone.mean(0)),
                (dist.ReduceOp.PRODUCT, everyone.prod(0)),
                (dist.ReduceOp.MAX, everyone.amax(0)),
                (dist.ReduceOp.MIN, everyone.amin(0)),
            ):
                assert torch.allclose(self.sum_of(own, op).double(), wanted), (count, op)
            for dtype in (torch.bfloat16, torch.int32, torch.int64, torch.uint8):
                got = self.sum_of(own, dist.ReduceOp.SUM, dtype)
                assert torch.allclose(got.double(), everyone.sum(0), rtol=1e-2), (count, dtype)

    def layouts(self) -> None:
        tensor = on_device(self.own[self.rank].reshape(10, 100)).t()
        dist.all_reduce(tensor)
        assert torch.equal(tensor.cpu(), self.total.reshape(10, 100).t())

    def left_to_nccl(self) -> None:
        """A type that NCCL would refuse is its to refuse; in a graph it sums alone."""
        before = self.bytes()
        halves = on_device(torch.ones(4, dtype=torch.int16))
        dist.all_reduce(halves)
        self.fake.capture(True)
        tensor = self.mine()
        dist.all_reduce(tensor)
        self.fake.capture(False)
        assert self.bytes() == before
        assert torch.equal(tensor.cpu(), self.total)

    def bytes(self) -> int:
        counted: dict[str, Any] = torch_smddp.stats()
        return int(counted["operations"].get("all_reduce", {}).get("bytes", 0))

    def what_crosses(self) -> int:
        """Bytes of the core's all-reduces for one of COUNT elements."""
        before = self.bytes()
        dist.all_reduce(self.mine())
        return self.bytes() - before


def on_rails(fake: Any) -> dict[str, Any]:
    rank = os.environ["RANK"]
    stand_ins: Any = _fallbacks
    gloo = stand_ins._gloo
    stand_ins.dist = SimpleNamespace(is_nccl_available=lambda: True)
    stand_ins._gpu = lambda: rank
    stand_ins._has_rdma = lambda: "rdma" in sys.argv
    stand_ins._nccl = lambda name, store, *place: fake.nccl(gloo(c10d.PrefixStore(name, store), *place))
    dist.init_process_group(f"cpu:smddp,{DEVICE}:smddp", timeout=timedelta(seconds=40))
    checks = RailChecks(fake)
    crossed = checks.what_crosses()
    if crossed:
        checks.order_of_streams()
        checks.futures()
        checks.reductions()
        checks.layouts()
        checks.pieces()
        checks.left_to_nccl()
    return {"crossed": crossed}


def neighbour_dies(fake: Any) -> dict[str, Any]:
    """The others' sums inside the host would wait for ever."""
    on_rails(fake)
    checks = RailChecks(fake)
    if checks.rank == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        for _ in range(3):
            dist.all_reduce(checks.mine())
            fake.synchronize()
    except RuntimeError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - start}))
        sys.stdout.flush()
        os._exit(0)
    raise AssertionError("nobody missed the rank that died")


def main() -> None:
    fake = load(sys.argv[1])
    if "rails" in sys.argv:
        report = neighbour_dies(fake) if "death" in sys.argv else on_rails(fake)
        dist.barrier()
        dist.destroy_process_group()
        print(json.dumps(report))
        return
    dist.init_process_group(f"cpu:smddp,{DEVICE}:smddp", timeout=timedelta(seconds=40))
    checks = Checks(fake)
    checks.order_of_streams()
    checks.futures()
    checks.memory()
    checks.operations()
    checks.pieces()
    checks.split()
    refused = checks.refusals()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(refused))


if __name__ == "__main__":
    main()
