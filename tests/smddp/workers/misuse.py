"""Calls that ranks do not agree on, and arguments that no group has: one case a run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist
from smdistributed.dataparallel import exceptions
from torch._C import _distributed_c10d

c10d: Any = _distributed_c10d


def coalesced(*sizes: int) -> None:
    torchs: Any = dist
    with torchs._coalescing_manager():
        for size in sizes:
            dist.all_reduce(torch.ones(size))


def gather(dtype: torch.dtype = torch.float32, root: int = 0, size: int = 10) -> None:
    outputs = [torch.zeros(size, dtype=dtype) for _ in range(dist.get_world_size())]
    dist.gather(torch.ones(size, dtype=dtype), outputs if dist.get_rank() == root else None, dst=root)


# What rank 0 does, and what the others do.
DISAGREEMENTS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "coalesced_sizes": (lambda: coalesced(10, 20), lambda: coalesced(20, 10)),
    "coalesced_or_not": (lambda: coalesced(10, 20), lambda: dist.all_reduce(torch.ones(30))),
    "reduce_roots": (lambda: dist.reduce(torch.ones(10), 0), lambda: dist.reduce(torch.ones(10), 1)),
    "reduce_or_all_reduce": (lambda: dist.reduce(torch.ones(10), 0), lambda: dist.all_reduce(torch.ones(10))),
    "premul_sum": (
        lambda: dist.all_reduce(torch.ones(10), c10d._make_nccl_premul_sum(2.0)),
        lambda: dist.all_reduce(torch.ones(10)),
    ),
    "bool_or_uint8": (
        lambda: dist.all_reduce(torch.ones(10, dtype=torch.bool), dist.ReduceOp.MAX),
        lambda: dist.all_reduce(torch.ones(10, dtype=torch.uint8), dist.ReduceOp.MAX),
    ),
    "gather_types": (gather, lambda: gather(torch.int32)),
    "gather_roots": (gather, lambda: gather(root=1)),
}


def disagree(case: str) -> str:
    call = DISAGREEMENTS[case][dist.get_rank() > 0]
    try:
        call()
        dist.barrier()  # gloo's operations may be over before the ranks have compared them
    except exceptions.SMDDPMismatchError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def refused() -> str:
    """Each of these concerns nobody else, and leaves the group usable."""
    rank, size = dist.get_rank(), dist.get_world_size()
    world = dist.group.WORLD
    tensor = torch.ones(3)
    assert world is not None
    calls: list[Callable[[], object]] = [
        lambda: world.send([tensor], size, 0),
        lambda: world.send([tensor], -3, 0),
        lambda: world.recv([tensor], size + 5, 0),
        lambda: world.recv([tensor], rank, 0),
    ]
    texts = []
    for call in calls:
        try:
            call()
        except exceptions.SMDDPUsageError as error:
            texts.append(str(error))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(size)] * 3
    return "; ".join(texts)


def gloos_types() -> str:
    """complex32 is gloo's. Its reduce-scatter cannot tell when it is done."""
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = [torch.full((4,), complex(rank + 1, r), dtype=torch.complex32) for r in range(size)]
    output = torch.zeros(4, dtype=torch.complex32)
    work = dist.reduce_scatter(output, inputs, async_op=True)
    assert work is not None
    work.wait()
    expected = torch.full((4,), complex(size * (size + 1) / 2, rank * size), dtype=torch.complex32)
    assert torch.equal(torch.view_as_real(output), torch.view_as_real(expected)), output
    assert work.is_completed()
    dist.reduce_scatter_tensor(output, torch.cat(inputs))
    assert torch.equal(torch.view_as_real(output), torch.view_as_real(expected)), output
    dist.barrier()
    return ""


if __name__ == "__main__":
    if sys.argv[1:] == ["wrong_setting", os.environ["RANK"]]:
        os.environ["SMDDP_NET"] = "carrier-pigeon"
    dist.init_process_group("smddp", timeout=timedelta(seconds=20))
    start = time.monotonic()
    case = sys.argv[1]
    cases = {"refused": refused, "gloos_types": gloos_types}
    message = cases[case]() if case in cases else disagree(case)
    print(json.dumps({"message": message, "seconds": time.monotonic() - start}))
