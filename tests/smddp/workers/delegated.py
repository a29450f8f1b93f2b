"""Operations that gloo carries out, in the counters and the flight recorder; reports both."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from smdistributed.dataparallel.torch import torch_smddp


def main() -> None:
    dist.init_process_group("smddp")
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    dist.gather(tensor, [torch.ones(1000) for _ in range(size)] if rank == 0 else None)
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
    held = all_to_all_holds(rank, size)
    dist.barrier()
    world: Any = dist.group.WORLD
    world.monitored_barrier(timedelta(seconds=60))
    print(json.dumps({"stats": torch_smddp.stats()["operations"], "last": torch_smddp.flight_recorder(), "held": held}))


def all_to_all_holds(rank: int, size: int) -> list[int]:
    """How many references to its tensors the operation holds when it is over. It is not before rank 0 has come."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait([f"looked/{other}" for other in range(1, size)])
    incoming, outgoing = torch.zeros(size), torch.ones(size)
    before = use_counts(incoming, outgoing)
    work = dist.all_to_all_single(incoming, outgoing, async_op=True)
    assert work is not None
    assert rank == 0 or not work.is_completed()
    store.set(f"looked/{rank}", "")
    work.wait()
    assert incoming.tolist() == [1.0] * size
    future = work.get_future().wait()
    assert [tensor.data_ptr() for tensor in future] == [incoming.data_ptr()]
    del work, future
    dist.barrier()
    return [now - known for now, known in zip(use_counts(incoming, outgoing), before, strict=True)]


def use_counts(*tensors: torch.Tensor) -> list[int]:
    return [tensor._use_count() for tensor in tensors]  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
