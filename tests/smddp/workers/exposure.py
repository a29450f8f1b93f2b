"""How long the program was blocked, by the counters: under DDP, by futures outside of it, and by several threads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from smdistributed.dataparallel.torch import torch_smddp
from torch.nn.parallel import DistributedDataParallel

LATE = 0.3


def exposed_by(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds in all-reduces, and of these the exposed ones, that `work` adds."""
    dist.barrier()
    before = torch_smddp.stats()["operations"]["all_reduce"]
    work()
    after = torch_smddp.stats()["operations"]["all_reduce"]
    return after["seconds"] - before["seconds"], after["exposed_seconds"] - before["exposed_seconds"]


def late(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(LATE)


def main() -> None:
    dist.init_process_group("smddp")
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(500, 500), torch.nn.Linear(500, 500)))
    data = torch.ones(2, 500)
    for _ in range(3):  # DDP settles its buckets
        model(data).sum().backward()

    def backward_beside_a_late_rank() -> None:
        loss = model(data).sum()
        late(1)
        loss.backward()

    def nobody_waits() -> None:
        late(1)
        work = dist.all_reduce(torch.ones(10), async_op=True)
        while not work.is_completed():
            time.sleep(0.01)
        work.wait()

    def waits_of_threads() -> None:
        late(1)
        work = dist.all_reduce(torch.ones(10), async_op=True)
        threads = [threading.Thread(target=work.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    parts = {
        "ddp": exposed_by(backward_beside_a_late_rank),
        "hidden": exposed_by(nobody_waits),
        "threads": exposed_by(waits_of_threads),
    }
    print(json.dumps(parts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
