"""Collectives on tensors of a device whose streams are asynchronous: fake_device, built by the test."""

from __future__ import annotations

import importlib.util
import json
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist

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


def main() -> None:
    fake = load(sys.argv[1])
    dist.init_process_group(f"cpu:smddp,{DEVICE}:smddp", timeout=timedelta(seconds=40))
    checks = Checks(fake)
    checks.order_of_streams()
    checks.futures()
    checks.memory()
    checks.operations()
    refused = checks.refusals()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(refused))


if __name__ == "__main__":
    main()
