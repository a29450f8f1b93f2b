"""Groups come and go; processes fork, and leave without saying goodbye."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist
from smdistributed.dataparallel import exceptions


def check_sum() -> None:
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    assert tensor[-1] == dist.get_world_size()


def child_is_refused() -> bool:
    """A forked child that uses the group gets an error, and its end leaves the parent's connections alone."""
    child = os.fork()
    if child == 0:
        try:
            assert dist.group.WORLD is not None
            dist.group.WORLD.barrier()
        except exceptions.SMDDPUsageError:
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    for turn in range(3):
        # A store of its own for each: with env:// a fast rank could still meet the store of the turn before.
        store = f"file://{sys.argv[1]}/store-{turn}"
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("smddp", store, timeout=timedelta(seconds=20), rank=rank, world_size=size)
        check_sum()
        dist.destroy_process_group()
    dist.init_process_group("smddp", timeout=timedelta(seconds=20))
    refused = child_is_refused()
    check_sum()
    leftovers = [name for name in os.listdir("/dev/shm") if name.startswith("smddp-")]  # noqa: PTH208
    print(
        json.dumps({"refused": refused, "leftovers": leftovers, "local_rank": os.environ["SMDATAPARALLEL_LOCAL_RANK"]})
    )
    # No destroy_process_group(), and an operation that nobody waits for.
    dist.all_reduce(torch.ones(1000), async_op=True)


if __name__ == "__main__":
    main()
