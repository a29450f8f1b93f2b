"""What `pytorch_lightning.plugins.training_type.parallel` of 1.5.9 and before did with the environment."""

from __future__ import annotations

import json
import os

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist


def torch_distributed_backend() -> str:
    return os.getenv("PL_TORCH_DISTRIBUTED_BACKEND") or "gloo"


def main() -> None:
    # init_dist_connection() of these releases: positional back end, rank and size from the cluster environment.
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(torch_distributed_backend(), rank=rank, world_size=size)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    gathered = [torch.empty(1) for _ in range(size)]
    dist.all_gather(gathered, torch.tensor([float(rank)]))
    print(json.dumps({"backend": dist.get_backend(), "sum": total.item(), "gathered": torch.cat(gathered).tolist()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
