"""A rank that carries out calls as they come on its standard input, so that a call costs milliseconds, not a start."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))
from operations import Call, laid_out, type_of, values

Tensors = list[torch.Tensor]


class Rank:
    """Runs calls; keeps the memory around the tensors it hands out, to look at it afterwards."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.around: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.originals: dict[int, torch.Tensor] = {}

    def input(self, call: Call, part: int = 0) -> torch.Tensor:
        return self.place(values(call, self.rank, part), call.layout)

    def place(self, tensor: torch.Tensor, layout: str) -> torch.Tensor:
        view, base = laid_out(tensor, layout)
        self.around.append((view, base))
        self.originals[id(view)] = tensor
        return view

    def stack(self, call: Call) -> torch.Tensor:
        """One input that holds a part for each rank, always contiguous."""
        whole = torch.stack([values(call, self.rank, part) for part in range(self.size)])
        self.originals[id(whole)] = whole.clone()
        return whole

    def empty(self, call: Call) -> torch.Tensor:
        return self.place(torch.zeros(call.shape, dtype=type_of(call.dtype)), call.layout)

    def run(self, call: Call) -> Tensors:
        """What the call gave; asserts that inputs and the memory beside the tensors are untouched."""
        self.around, self.originals = [], {}
        inputs, outs = getattr(self, call.name)(call)
        if call.asynchronous and self.work is not None:
            self.work.wait()
        for tensor in inputs:
            assert torch.equal(tensor, self.originals[id(tensor)]), "an input was written to"
        for view, base in self.around:
            view_copy = view.clone()
            view.zero_()
            assert not base.any(), "memory beside a tensor was written to"
            view.copy_(view_copy)
        return [out.clone() for out in outs]

    def options(self, call: Call) -> dict[str, Any]:
        return {"async_op": call.asynchronous}

    def all_reduce(self, call: Call) -> tuple[Tensors, Tensors]:
        tensor = self.input(call)
        self.work = dist.all_reduce(tensor, op_of(call), **self.options(call))
        return [], [tensor]

    def all_reduce_coalesced(self, call: Call) -> tuple[Tensors, Tensors]:
        tensors = [self.input(call, part) for part in range(3)]
        self.work = dist.all_reduce_coalesced(tensors, op_of(call), **self.options(call))
        return [], tensors

    def reduce(self, call: Call) -> tuple[Tensors, Tensors]:
        tensor = self.input(call)
        self.work = dist.reduce(tensor, call.root, op_of(call), **self.options(call))
        return [], [tensor] if self.rank == call.root else []

    def reduce_scatter(self, call: Call) -> tuple[Tensors, Tensors]:
        ins, out = [self.input(call, part) for part in range(self.size)], self.empty(call)
        self.work = dist.reduce_scatter(out, ins, op_of(call), **self.options(call))
        return ins, [out]

    def reduce_scatter_tensor(self, call: Call) -> tuple[Tensors, Tensors]:
        whole = self.stack(call)
        out = self.empty(call)
        self.work = dist.reduce_scatter_tensor(out, whole, op_of(call), **self.options(call))
        return [whole], [out]

    def broadcast(self, call: Call) -> tuple[Tensors, Tensors]:
        tensor = self.input(call)
        self.work = dist.broadcast(tensor, call.root, **self.options(call))
        return [], [tensor]

    def all_gather(self, call: Call) -> tuple[Tensors, Tensors]:
        tensor, outs = self.input(call), [self.empty(call) for _ in range(self.size)]
        self.work = dist.all_gather(outs, tensor, **self.options(call))
        return [tensor], outs

    def all_gather_into_tensor(self, call: Call) -> tuple[Tensors, Tensors]:
        tensor = self.input(call)
        whole = torch.zeros((self.size, *call.shape), dtype=tensor.dtype)
        self.work = dist.all_gather_into_tensor(whole, tensor, **self.options(call))
        return [tensor], [whole]

    def gather(self, call: Call) -> tuple[Tensors, Tensors]:
        tensor = self.input(call)
        outs = [self.empty(call) for _ in range(self.size)] if self.rank == call.root else None
        self.work = dist.gather(tensor, outs, call.root, **self.options(call))
        return [tensor], outs or []

    def scatter(self, call: Call) -> tuple[Tensors, Tensors]:
        ins = [self.input(call, part) for part in range(self.size)] if self.rank == call.root else None
        out = self.empty(call)
        self.work = dist.scatter(out, ins, call.root, **self.options(call))
        return ins or [], [out]

    def all_to_all_single(self, call: Call) -> tuple[Tensors, Tensors]:
        whole = self.stack(call)
        out = self.place(torch.zeros_like(whole), call.layout)
        self.work = dist.all_to_all_single(out, whole, **self.options(call))
        return [whole], [out]


def op_of(call: Call) -> Any:
    return getattr(dist.ReduceOp, call.reduction)


def requests(stream: BinaryIO) -> Iterator[Call]:
    with contextlib.suppress(EOFError):
        while True:
            yield pickle.load(stream)


def main() -> None:
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    dist.init_process_group("smddp", timeout=timedelta(seconds=30))
    rank = Rank()
    for call in requests(sys.stdin.buffer):
        try:
            answer: Any = rank.run(call)
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
