"""Ranks whose store falls silent, or has nothing from rank 0 but a refusal, while a group is set up."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from failures import report_failure
from smdistributed.dataparallel import exceptions
from smdistributed.dataparallel.torch import torch_smddp
from torch._C import _distributed_c10d as c10d

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIMIT = timedelta(seconds=3)
LONG = timedelta(seconds=60)


def meet() -> c10d.Store:
    """The store that rank 0 keeps, once all are connected to it."""
    store = c10d.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, RANK == 0, LONG)
    store.set(f"here/{RANK}", "")
    store.wait([f"here/{rank}" for rank in range(SIZE)])
    return store


def init(store: c10d.Store, limit: timedelta) -> None:
    dist.init_process_group("smddp", store=store, rank=RANK, world_size=SIZE, timeout=limit)


def init_without_answer() -> None:
    store = meet()
    if RANK == 0:
        # All have to know that all are there.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGSTOP)
    report_failure(exceptions.SMDDPTimeoutError, time.monotonic(), lambda: init(store, LIMIT))


def new_group_without_answer() -> None:
    dist.init_process_group("smddp", timeout=LONG)
    dist.barrier()
    if RANK == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    report_failure(exceptions.SMDDPTimeoutError, time.monotonic(), lambda: dist.new_group(timeout=LIMIT))


def refusal() -> None:
    """Rank 0 cannot even say where it is; at the second try, to which the others come earlier, it can."""
    store = meet()
    start = time.monotonic()
    if RANK == 0:
        os.environ["SMDDP_SOCKET_IFNAME"] = "nope0"
    kind = exceptions.SMDDPUsageError if RANK == 0 else exceptions.SMDDPPeerError
    report_failure(kind, start, lambda: init(store, LONG))
    store.set(f"failed/{RANK}", "")
    store.wait([f"failed/{rank}" for rank in range(SIZE)])
    if RANK == 0:
        del os.environ["SMDDP_SOCKET_IFNAME"]
        time.sleep(0.5)
    with contextlib.suppress(AssertionError, ValueError):  # torch may still have the group that failed
        dist.destroy_process_group()
    init(c10d.PrefixStore("", store), LONG)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [SIZE] * 3
    assert torch_smddp.stats()["error"] is None
    # Its process has the store.
    dist.barrier()
    if RANK == 0:
        time.sleep(0.5)


if __name__ == "__main__":
    {
        "init_without_answer": init_without_answer,
        "new_group_without_answer": new_group_without_answer,
        "refusal": refusal,
    }[sys.argv[1]]()
