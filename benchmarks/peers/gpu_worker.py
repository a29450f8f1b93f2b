"""One rank of benchmarks/gpu.py: times all-reduces of tensors on a GPU in every library's group, in turn.

    gpu_worker.py LIBRARY,... SIZE,... ROUNDS

Sizes in bytes. Rank 0 prints one JSON object: library -> size -> microseconds of each round, that of the slowest rank.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import smdistributed.dataparallel.torch.torch_smddp as torch_smddp
import torch
import torch.distributed as dist

GPU = torch.device("cuda:0")
# Of a group in which nothing of what is timed happens.
HOST = "gloo"


def seconds_of(tensor: torch.Tensor, group: Any) -> float:
    """Of one sum, from where all ranks are ready to where the slowest has it on its GPU."""
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    took = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def check(count: int, group: Any, library: str) -> None:
    """Against float64 on the host."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    mine = torch.rand(count, generator=generator)
    tensor, wanted = mine.to(GPU), mine.double()
    dist.all_reduce(tensor, group=group)
    dist.all_reduce(wanted)
    error = float((tensor.cpu().double() - wanted).abs().max())
    if not error < 1e-5:
        raise SystemExit(f"gpu_worker.py: {library}: a sum of {count} elements is wrong by {error}")


def main() -> None:
    libraries, sizes, rounds = sys.argv[1].split(","), [int(size) for size in sys.argv[2].split(",")], int(sys.argv[3])
    torch.cuda.set_device(GPU)
    dist.init_process_group(HOST)
    groups = {library: dist.new_group(backend=library) for library in libraries}
    times: dict[str, dict[int, list[float]]] = {library: {} for library in libraries}
    for size in sizes:
        tensor = torch.zeros(size // 4, device=GPU)
        for library, group in groups.items():
            check(size // 4, group, library)
        for _ in range(rounds):
            for library, group in groups.items():
                times[library].setdefault(size, []).append(seconds_of(tensor, group) * 1e6)
    if dist.get_rank() == 0:
        properties = torch.cuda.get_device_properties(GPU)
        facts = {"gpu": properties.name, "torch": torch.__version__, "path": torch_smddp.path(groups["smddp"])}
        print(json.dumps(facts | {"times": times}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
