"""Run by `mpirun python -m mpi4py`: a script as mmcv starts it, or one whose last rank fails while the others wait."""

from __future__ import annotations

import os
import sys

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist


def main() -> None:
    if sys.argv[1] == "mmcv":
        # mmcv sets these three itself, from Open MPI's; the import has done it already.
        rank, size, local = (int(os.environ[f"OMPI_COMM_WORLD_{x}"]) for x in ("RANK", "SIZE", "LOCAL_RANK"))
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), str(size))
    dist.init_process_group(backend="smddp")
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((100,), rank + 1.0)
    dist.all_reduce(tensor)
    if sys.argv[1] == "raise":
        if rank == size - 1:
            raise ValueError("the last rank gives up")
        dist.all_reduce(tensor)
    # One write a line: the launcher mixes the output of the ranks.
    sys.stdout.write(f"rank {rank} of {size}, local {local}: {tensor[0]}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
