"""What goes wrong, one group for each: the others must not notice."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist
from smdistributed.dataparallel import exceptions


def message_of(kind: type[exceptions.SMDDPError], tensor: torch.Tensor, group: dist.ProcessGroup | None) -> str:
    try:
        dist.all_reduce(tensor, group=group)
    except exceptions.SMDDPError as error:
        if type(error) is kind:
            return str(error)
        raise AssertionError(repr(error)) from error
    raise AssertionError(f"no {kind.__name__}")


def disagreements() -> None:
    """A mismatch, a timeout and an abort in three groups; a fourth carries on."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(timeout=timedelta(seconds=2)) for _ in range(3)]
    report = {"mismatch": message_of(exceptions.SMDDPMismatchError, torch.ones(3 + (rank == 1)), groups[0])}
    report["again"] = message_of(exceptions.SMDDPMismatchError, torch.ones(3), groups[0])
    if rank == size - 1:
        time.sleep(3)
    report["timeout"] = message_of(exceptions.SMDDPTimeoutError, torch.ones(2), groups[1])
    dist.barrier()
    assert groups[2] is not None
    if rank == 0:
        time.sleep(0.3)
        groups[2].abort()
    report["abort"] = message_of(exceptions.SMDDPAbortedError, torch.ones(2), groups[2])
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(size)] * 5
    meta = torch.ones(2, device="meta")
    try:
        dist.get_backend_config()
        dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([meta])  # type: ignore[union-attr]
    except NotImplementedError as error:
        report["device"] = str(error)
    print(json.dumps(report))


def death() -> None:
    """The last rank is killed while the others are in an operation and, once more, before they call one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(5))
    if rank == size - 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(300_000))
    except exceptions.SMDDPPeerError as error:
        took = time.monotonic() - start - 0.3
        print(json.dumps({"message": str(error), "seconds": took}))
        sys.stdout.flush()
        # Leaving must not wait for anyone either.
        return
    raise AssertionError("an all-reduce without one of the ranks came back")


if __name__ == "__main__":
    dist.init_process_group("smddp", timeout=timedelta(seconds=30))
    {"disagreements": disagreements, "death": death}[sys.argv[1]]()
