"""Operations that gloo carries out, in the counters and the flight recorder; reports both."""

from __future__ import annotations

import json

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
    work = dist.all_to_all_single(torch.zeros(size), torch.ones(size), async_op=True)
    assert work is not None
    work.wait()
    dist.barrier()
    print(json.dumps({"stats": torch_smddp.stats()["operations"], "last": torch_smddp.flight_recorder()}))


if __name__ == "__main__":
    main()
