"""Ranks that die, leave or stay away while others wait for somebody else, or in operations that gloo carries out."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from failures import report_failure
from smdistributed.dataparallel import exceptions
from smdistributed.dataparallel.torch import torch_smddp


def killed(after: float) -> None:
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


def away() -> None:
    """In no operation until the others are done."""
    time.sleep(6)
    print(json.dumps({"message": "", "seconds": 0}), flush=True)


def death_beside_an_absence() -> None:
    """The last rank is killed, and the one that the others wait for first is in no operation."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    start = time.monotonic()
    if rank == 0:
        return away()
    if rank == size - 1:
        killed(0.5)
    return report_failure(exceptions.SMDDPPeerError, start + 0.5, lambda: dist.all_reduce(torch.ones(4)))


def departure_beside_an_absence() -> None:
    """The same with a rank that leaves in good order, one operation too early."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    start = time.monotonic()
    if rank == 0:
        return away()
    if rank == size - 1:
        print(json.dumps({"message": "", "seconds": 0}), flush=True)
        return None
    return report_failure(exceptions.SMDDPPeerError, start, lambda: dist.all_reduce(torch.ones(4)))


def fails_beside(error: type[exceptions.SMDDPError], fail: Callable[[], None]) -> Callable[[], None]:
    """The last rank fails, half a second into an operation of the others, which end with `error`."""

    def run() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        dist.barrier()
        if rank == size - 1:
            time.sleep(0.5)
            fail()
        report_failure(error, time.monotonic() + 0.5, lambda: dist.all_reduce(torch.ones(4)))

    return run


def uncaught() -> None:
    raise ValueError("the labels are gone\udc80 " + "\u4e00" * 5000 + "\nall of them")


def destroyed_in_finally() -> None:
    try:
        raise ValueError("the labels are gone")
    finally:
        dist.destroy_process_group()


def aborted_in_except() -> None:
    try:
        raise ValueError("the labels are gone")
    except ValueError:
        torch_smddp.abort()
        raise


def caught_elsewhere() -> None:
    """All but rank 0 disagree in a group of their own, and end."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(1, size)))
    start = time.monotonic()
    if rank == 0:
        return report_failure(exceptions.SMDDPPeerError, start, lambda: dist.all_reduce(torch.ones(4)))
    return report_failure(
        exceptions.SMDDPMismatchError, start, lambda: dist.all_reduce(torch.ones(2 + (rank == 1)), group=group)
    )


def late_end() -> None:
    """Ranks that did their part may leave before the others are done."""
    rank = dist.get_rank()
    big = torch.ones(1 << 20)
    for _ in range(3):
        if rank == 1:
            time.sleep(0.5)
        dist.broadcast(big, 0)
    print(json.dumps({"message": "", "seconds": 0}), flush=True)


def receiving(call: Callable[[torch.Tensor], object]) -> Callable[[], None]:
    def run() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        dist.barrier()
        start = time.monotonic()
        if rank == 1:
            return away()
        if rank == size - 1:
            killed(0.5)
        return report_failure(exceptions.SMDDPPeerError, start + 0.5, lambda: call(torch.ones(4)))

    return run


def abort_while_receiving() -> None:
    rank = dist.get_rank()
    dist.barrier()
    start = time.monotonic()
    if rank != 0:
        return away()
    ours: Any = torch_smddp
    threading.Timer(0.5, ours.abort).start()
    return report_failure(exceptions.SMDDPAbortedError, start + 0.5, lambda: dist.recv(torch.ones(4), 1))


def silence_in_gather() -> None:
    """gloo's gather would be over for those that have sent."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier()
    start = time.monotonic()
    if rank == size - 1:
        return away()
    gathered = [torch.ones(3) for _ in range(size)] if rank == 0 else None
    return report_failure(
        exceptions.SMDDPTimeoutError, start + 2, lambda: dist.gather(torch.ones(3), gathered, group=group)
    )


def two_receives() -> None:
    """gloo's time-out of one receive closes the other's connection: both have one cause."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier()
    start = time.monotonic()
    if rank > 0:
        return away()
    works = [dist.irecv(torch.ones(4), 1, group) for _ in range(2)]
    texts = []
    for work in works:
        assert work is not None
        try:
            work.wait()
        except exceptions.SMDDPTimeoutError as error:
            texts.append(str(error))
    assert len(set(texts)) == 1, texts
    print(json.dumps({"message": texts[0], "seconds": time.monotonic() - start - 2}), flush=True)
    return None


def send_to_the_dead() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    start = time.monotonic()
    if rank == size - 1:
        killed(0)
    time.sleep(1)

    def send() -> None:
        for _ in range(100):
            dist.send(torch.ones(1 << 18), size - 1)

    return report_failure(exceptions.SMDDPPeerError, start, send)


def limited_wait() -> None:
    """wait(timeout) that runs out says what is missing, and ends nothing."""
    rank = dist.get_rank()
    dist.barrier()
    start = time.monotonic()
    tensor = torch.ones(3)
    if rank == 1:
        time.sleep(2)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    if rank == 1:
        print(json.dumps({"message": "", "seconds": 0}), flush=True)
    else:
        report_failure(exceptions.SMDDPTimeoutError, start + 1, lambda: work.wait(timedelta(seconds=1)))
    work.wait()
    assert tensor.tolist() == [float(dist.get_world_size())] * 3


def forked_child() -> None:
    """A child that ends as programs end, not as DataLoader's workers do, lets go of the group without a word."""
    dist.barrier()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    print(json.dumps({"message": str(status), "seconds": 0}), flush=True)


CASES: dict[str, Callable[[], None]] = {
    "death_beside_an_absence": death_beside_an_absence,
    "departure_beside_an_absence": departure_beside_an_absence,
    "uncaught_exception": fails_beside(exceptions.SMDDPPeerError, uncaught),
    "destroyed_in_finally": fails_beside(exceptions.SMDDPPeerError, destroyed_in_finally),
    "aborted_in_except": fails_beside(exceptions.SMDDPAbortedError, aborted_in_except),
    "caught_elsewhere": caught_elsewhere,
    "late_end": late_end,
    "recv": receiving(lambda tensor: dist.recv(tensor, 1)),
    "recv_any": receiving(lambda tensor: dist.recv(tensor)),
    "abort_while_receiving": abort_while_receiving,
    "silence_in_gather": silence_in_gather,
    "two_receives": two_receives,
    "send_to_the_dead": send_to_the_dead,
    "limited_wait": limited_wait,
    "forked_child": forked_child,
}

if __name__ == "__main__":
    dist.init_process_group("smddp", timeout=timedelta(seconds=30))
    CASES[sys.argv[1]]()
