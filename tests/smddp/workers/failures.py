"""What goes wrong, one group for each: the others must not notice."""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from smdistributed.dataparallel import exceptions
from smdistributed.dataparallel.torch import torch_smddp


def message_of(kind: type[exceptions.SMDDPError], tensor: torch.Tensor, group: dist.ProcessGroup | None) -> str:
    try:
        dist.all_reduce(tensor, group=group)
    except exceptions.SMDDPError as error:
        if type(error) is kind:
            return str(error)
        raise AssertionError(repr(error)) from error
    raise AssertionError(f"no {kind.__name__}")


def abort_of(group: dist.ProcessGroup) -> Callable[[], object]:
    """torch's own method, which releases before 2.7 have not, or ours."""
    ours: Any = torch_smddp
    return getattr(group, "abort", None) or functools.partial(ours.abort, group)


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
        abort_of(groups[2])()
    report["abort"] = message_of(exceptions.SMDDPAbortedError, torch.ones(2), groups[2])
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(size)] * 5
    meta = torch.ones(2, device="meta")
    try:
        backend: Any = torch_smddp._backend(None)
        backend.allreduce([meta])
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


def report_failure(kind: type[exceptions.SMDDPError], start: float, call: Callable[[], object]) -> None:
    """Makes the call, which must fail with `kind`, and reports its text and when it came after `start`."""
    try:
        call()
    except exceptions.SMDDPError as error:
        if type(error) is not kind:
            raise AssertionError(repr(error)) from error
        print(json.dumps({"message": str(error), "seconds": time.monotonic() - start}), flush=True)
        return
    raise AssertionError(f"no {kind.__name__}")


def death_inside() -> None:
    """The last rank is killed while it is in an operation itself."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    start = time.monotonic()
    if rank == size - 1:
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def endless() -> None:
        tensor = torch.ones(1 << 20)
        while True:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)

    report_failure(exceptions.SMDDPPeerError, start + 1, endless)


def silence() -> None:
    """The last rank stops as a whole: its connections stay, it says nothing more."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    start = time.monotonic()
    report_failure(exceptions.SMDDPTimeoutError, start, lambda: dist.all_reduce(torch.ones(4), group=group))


def absence() -> None:
    """The last rank is alive and elsewhere; whoever is waited for by ranks that wait must not be blamed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier()
    start = time.monotonic()
    if rank == size - 1:
        time.sleep(6)
        # Late: learns why the group is dead.
    report_failure(exceptions.SMDDPTimeoutError, start, lambda: dist.all_reduce(torch.ones(100_000), group=group))


def delegated() -> None:
    """Rank 0 calls an operation of the fallback where the others call one of ours."""
    rank = dist.get_rank()
    tensor = torch.ones(3)
    gathered = [torch.ones(3) for _ in range(dist.get_world_size())] if rank == 0 else None
    for _ in range(2):  # in the same order everywhere this is fine
        dist.gather(tensor, gathered)
        dist.all_reduce(tensor)
    # Not by an operation: who is still leaving one would be told there of what the others do next.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"agreed/{rank}", "")
    store.wait([f"agreed/{other}" for other in range(dist.get_world_size())])
    start = time.monotonic()
    report_failure(
        exceptions.SMDDPMismatchError,
        start,
        lambda: dist.gather(tensor, gathered) if rank == 0 else dist.all_reduce(tensor),
    )


def abort() -> None:
    """Another thread of the last rank aborts while all ranks wait, one of them in an operation of the fallback."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    assert group is not None
    dist.barrier()
    start = time.monotonic()
    if rank == size - 1:
        threading.Timer(1, abort_of(group)).start()
    if rank == 0:
        time.sleep(3)
        dist.barrier()
        print(json.dumps({"message": "aborted by rank", "seconds": 0}))
        return
    report_failure(exceptions.SMDDPAbortedError, start + 1, lambda: dist.all_reduce(torch.ones(4), group=group))
    dist.barrier()


def cut() -> None:
    """The last rank's host is cut off from the network: nobody closes a connection."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    start = time.monotonic()
    if rank == size - 1:
        threading.Timer(1, subprocess.run, (["ip", "link", "set", "eth0", "down"],)).start()

    def endless() -> None:
        tensor = torch.ones(1 << 16)
        while True:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)

    report_failure(exceptions.SMDDPPeerError, start + 1, endless)


def limit_descriptors(left: int) -> None:
    """Lets this process open `left` more."""
    free = [os.dup(0) for _ in range(left)]
    limit = max(free) + 1
    for descriptor in free:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def joining_death() -> None:
    """The last rank dies while a second group is set up, for which rank 1 is late."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    start = time.monotonic()
    if rank == size - 1:
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if rank == 1:
        time.sleep(4)
    if rank == 0:
        report_failure(exceptions.SMDDPPeerError, start + 1, dist.new_group)
        return
    try:
        # The store was rank 0's, and may be gone with it.
        dist.new_group()
    except RuntimeError as error:
        print(json.dumps({"message": str(error)}))
        return
    raise AssertionError("a group without one of its ranks")


def joining_descriptors() -> None:
    """The last rank may open no more files while a second group is set up."""
    dist.barrier()
    start = time.monotonic()
    if dist.get_rank() == dist.get_world_size() - 1:
        limit_descriptors(int(sys.argv[2]))
    report_failure(exceptions.SMDDPError, start, dist.new_group)


if __name__ == "__main__":
    dist.init_process_group("smddp", timeout=timedelta(seconds=30))
    {
        "disagreements": disagreements,
        "death": death,
        "death_inside": death_inside,
        "silence": silence,
        "absence": absence,
        "delegated": delegated,
        "abort": abort,
        "cut": cut,
        "joining_death": joining_death,
        "joining_descriptors": joining_descriptors,
    }[sys.argv[1]]()
