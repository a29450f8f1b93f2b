"""Two ranks that torch.multiprocessing starts, of which one ends with an exception."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from smdistributed.dataparallel import exceptions
from smdistributed.dataparallel.torch import torch_smddp
from torch.multiprocessing.spawn import spawn


def work(rank: int) -> None:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)})
    dist.init_process_group("smddp", timeout=timedelta(seconds=30))
    dist.barrier()
    if rank == 1:
        raise KeyError("a column")
    try:
        dist.all_reduce(torch.ones(4))
    except exceptions.SMDDPPeerError as error:
        print(json.dumps({"message": str(error), "path": torch_smddp.path()}), flush=True)


if __name__ == "__main__":
    context = spawn(work, nprocs=2, join=False)  # type: ignore[no-untyped-call]
    end = time.monotonic() + 60
    # Not context.join(), which kills the others when one fails.
    for process in context.processes:
        process.join(max(0.0, end - time.monotonic()))
        process.kill()
