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


def scatter(size: int) -> None:
    first = dist.get_rank() == 0
    dist.scatter(torch.zeros(size), [torch.ones(size) for _ in range(dist.get_world_size())] if first else None)


def all_to_all(size: int, dtype: torch.dtype = torch.float32) -> None:
    ranks = range(dist.get_world_size())
    dist.all_to_all([torch.zeros(size, dtype=dtype) for _ in ranks], [torch.ones(size, dtype=dtype) for _ in ranks])


def all_to_all_single(gives: int, takes: int) -> None:
    """To and from the other rank of two."""
    rank = dist.get_rank()
    splits = [[1, 1], [1, 1]]
    splits[0][1 - rank], splits[1][1 - rank] = gives, takes
    dist.all_to_all_single(torch.zeros(1 + takes, 5), torch.ones(1 + gives, 5), splits[1], splits[0])


def reduce_of_gloos_type(size: int) -> None:
    dist.all_reduce(torch.ones(size, dtype=torch.complex32))


def messages(*sizes: int, dtype: torch.dtype = torch.float32) -> None:
    """Rank 0 sends to rank 1, all at once."""
    first = dist.get_rank() == 0
    works = [(dist.isend if first else dist.irecv)(torch.ones(size, dtype=dtype), int(first)) for size in sizes]
    for work in works:
        assert work is not None
        work.wait()


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
    "gather_more": (lambda: gather(size=10), lambda: gather(size=1_000_000)),
    "gather_less": (lambda: gather(size=1_000_000), lambda: gather(size=10)),
    "gather_or_scatter": (gather, lambda: scatter(10)),
    "scatter_more": (lambda: scatter(1_000_000), lambda: scatter(10)),
    "scatter_less": (lambda: scatter(10), lambda: scatter(1_000_000)),
    "all_to_all_sizes": (lambda: all_to_all(10), lambda: all_to_all(1_000_000)),
    "all_to_all_types": (lambda: all_to_all(10), lambda: all_to_all(10, torch.int32)),
    "all_to_all_single_more": (lambda: all_to_all_single(100_000, 3), lambda: all_to_all_single(3, 2)),
    "all_to_all_single_less": (lambda: all_to_all_single(1, 3), lambda: all_to_all_single(3, 2)),
    "gloos_all_reduce": (lambda: reduce_of_gloos_type(10), lambda: reduce_of_gloos_type(1_000_000)),
    "longer_message": (lambda: messages(20), lambda: messages(10)),
    "shorter_message": (lambda: messages(10), lambda: messages(20)),
    "message_types": (lambda: messages(10), lambda: messages(10, dtype=torch.int32)),
    "second_message": (lambda: messages(10, 1_000_000, 7), lambda: messages(10, 1_000_001, 7)),
}


def disagree(case: str) -> str:
    call = DISAGREEMENTS[case][dist.get_rank() > 0]
    try:
        call()
        dist.barrier()  # messages between two ranks may be over before these have compared them
    except exceptions.SMDDPMismatchError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return str(error).split("\n")[0]
    return ""


def wrong_lists() -> list[Callable[[], object]]:
    """Of rank 0."""
    size = dist.get_world_size()
    tensor = torch.ones(3)
    return [
        lambda: dist.gather(tensor, [tensor.clone()] * (size + 1)),
        lambda: dist.gather(tensor, [torch.ones(4)] * size),
        lambda: dist.scatter(tensor, [torch.ones(3, 1)] * size),
        lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1] * size, [3] * size),
    ]


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
    if rank == 0:
        texts += [error_of(call) for call in wrong_lists()]
    # What one rank was refused, the others did not begin.
    outputs = [torch.zeros(3) for _ in range(size)]
    dist.gather(torch.full((3,), float(rank)), outputs if rank == 0 else None)
    assert rank or [output[0] for output in outputs] == list(range(size))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(size)] * 3
    return "; ".join(texts)


def by_way_of_rank_0() -> str:
    """Ranks 1 and 2 are not connected: neither on one host nor the same local rank. The others wait for them."""
    rank = dist.get_rank()
    try:
        if rank == 1:
            dist.send(torch.ones(10), 2)
        if rank == 2:
            dist.recv(torch.ones(11), 1)
        dist.barrier()
    except exceptions.SMDDPMismatchError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def gathered_before_a_message() -> str:
    """Rank 1 gathers and then sends, and rank 0 gathers only when it has received: gloo's own gather would let it."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    tensor = torch.ones(10)
    gathered = [torch.zeros(10) for _ in range(2)]
    try:
        if dist.get_rank() == 0:
            dist.recv(tensor, 1, group)
            dist.gather(tensor, gathered, 0, group)
        else:
            dist.gather(tensor, None, 0, group)
            dist.send(tensor, 0, group)
    except exceptions.SMDDPError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused_by_gloo(call: Callable[[], object]) -> None:
    said: object = None
    try:
        call()
    except (RuntimeError, ValueError) as error:
        said = error
    assert said is not None
    assert not isinstance(said, exceptions.SMDDPError), said


def messages_that_differ_only_in_time() -> str:
    """Waits that are long enough for the ranks to compare, and nothing to object to."""
    rank = dist.get_rank()
    sizes, tags = (10, 20, 10, 0), (0, 0, 1, 2**31 - 1)
    received = [torch.zeros(size) for size in sizes]
    for size, tag, into in zip(sizes, tags, received, strict=True):
        if rank == 0:
            time.sleep(0.5)
            dist.send(torch.ones(size), 1, tag=tag)
        else:
            assert dist.recv(into, 0, tag=tag) == 0
    # Tags are told apart: what was sent last is received first.
    if rank == 0:
        works = [dist.isend(torch.full((5,), float(tag)), 1, tag=tag) for tag in range(3)]
    else:
        works = [
            dist.irecv(into, 0, tag=tag)
            for tag, into in ((2, torch.zeros(5)), (1, torch.zeros(5)), (0, torch.zeros(5)))
        ]
    for work in works:
        assert work is not None
        work.wait()
    # Numbers mean nothing where it is open who sends.
    for size in (3, 4):
        if rank == 0:
            dist.send(torch.ones(size), 1)
            time.sleep(0.5)
            dist.send(torch.ones(size + 1), 1)
        else:
            assert dist.recv(torch.zeros(size)) == 0
            assert dist.recv(torch.zeros(size + 1), 0) == 0
    assert rank == 0 or all(bool((into == 1).all()) for into in received)
    # What gloo refuses is no message: the next one is still the first with this tag.
    if rank == 0:
        refused_by_gloo(lambda: dist.send(torch.ones(3), 1, tag=-1))
        refused_by_gloo(lambda: dist.send(torch.ones(4, 4)[:, 0], 1, tag=9))
        time.sleep(0.5)
        dist.send(torch.ones(4), 1, tag=9)
    else:
        dist.recv(torch.zeros(4), 0, tag=9)
    return ""


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
    if sys.argv[1:3] == ["wrong_setting", os.environ["RANK"]]:
        for setting in sys.argv[3:]:
            name, _, os.environ[name] = setting.partition("=")
    dist.init_process_group("smddp", timeout=timedelta(seconds=20))
    start = time.monotonic()
    case = sys.argv[1]
    cases = {
        function.__name__: function
        for function in (
            refused,
            gloos_types,
            by_way_of_rank_0,
            messages_that_differ_only_in_time,
            gathered_before_a_message,
        )
    }
    message = cases[case]() if case in cases else disagree(case)
    print(json.dumps({"message": message, "seconds": time.monotonic() - start}))
