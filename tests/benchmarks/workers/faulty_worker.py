"""``torch_worker.py`` over gloo, with one fault: the first argument says which."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "peers"))
import torch_worker  # type: ignore[import-not-found]

FAULT = sys.argv[1]
CALLS = 0
MEETING = 16  # Elements.
SAVED = False


def all_reduce(tensor: torch.Tensor) -> None:
    global CALLS, SAVED
    CALLS += 1
    first = float(tensor[0])
    dist.all_reduce(tensor)
    last_rank = dist.get_rank() == dist.get_world_size() - 1
    if FAULT == "saves":
        # Each call has to wait, but for the first after a meeting.
        if tensor.numel() > MEETING and not SAVED:
            time.sleep(0.03)
        SAVED = tensor.numel() == MEETING
    if FAULT == "rounds" and last_rank:
        tensor[-1] *= 1 + 2.0**-20  # Sixteen units in the last place, in one element of one rank.
    elif FAULT == "forgets" and last_rank and tensor.numel() > MEETING:
        tensor[0] = first
    elif FAULT == "dies" and CALLS > 3 and last_rank:
        os._exit(7)


def broken(_library: str) -> Callable[[torch.Tensor], object]:
    dist.init_process_group("gloo")
    return all_reduce


torch_worker._all_reduce_of = broken
torch_worker.main()
