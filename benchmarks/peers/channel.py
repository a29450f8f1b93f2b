"""The rank's end of the driver's pipes, for ranks in Python; the protocol is described in ``harness/job.py``."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

Handler = Callable[[str, list[str]], str]


class Payload:
    """``payload.cpp``: what ranks send and how they check what they got."""

    def __init__(self) -> None:
        library = ctypes.CDLL(os.environ["BENCH_PAYLOAD"])
        self._fill = library.payload_fill
        self._sum = library.payload_check_sum
        self._copy = library.payload_check_copy
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._fill.argtypes = [pointer, size, size, number]
        self._fill.restype = None
        self._sum.argtypes = [pointer, size, size, number, ctypes.c_double]
        self._copy.argtypes = [pointer, size, size, number]
        self._sum.restype = self._copy.restype = size

    def fill(self, tensor: torch.Tensor, first: int, rank: int) -> None:
        self._fill(tensor.data_ptr(), first, tensor.numel(), rank)

    def wrong_in_sum(self, tensor: torch.Tensor, first: int, ranks: int, roundoff: float) -> int:
        return int(self._sum(tensor.data_ptr(), first, tensor.numel(), ranks, roundoff))

    def wrong_in_copy(self, tensor: torch.Tensor, first: int, rank: int) -> int:
        return int(self._copy(tensor.data_ptr(), first, tensor.numel(), rank))


def cpu_seconds() -> float:
    """Of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve(rank: int, handler: Handler) -> None:
    """Answer commands until ``quit``; when the driver is gone, end at once, whatever the other ranks do."""
    folder = Path(os.environ["BENCH_CHANNEL"])
    with (folder / f"in.{rank}").open() as commands, (folder / f"out.{rank}").open("w", buffering=1) as replies:
        print("ready", os.getpid(), file=replies)
        for line in commands:
            verb, *words = line.split()
            if verb == "quit":
                return
            try:
                reply = handler(verb, words)
            except Exception as error:
                text = str(error).splitlines()[0] if str(error) else ""
                reply = f"error {type(error).__name__}: {text}"
            print(reply, file=replies)
    os._exit(3)


def leave() -> NoReturn:
    """End this process in good order, but without taking Python and torch apart: that costs a rank 0.5 s of a core, and
    up to thirty of them leave at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
