"""Brings the pieces that replicas have updated to all of them: an all-gather of flat buffers, a chunk at a time."""

from __future__ import annotations

from typing import Mapping, Sequence

import torch
import torch.distributed as dist

from .. import comm
from .pieces import Piece

# Bounds the memory for buffers to (ranks + 1) times this many elements.
CHUNK = 4 * 1024 * 1024


def share(
    parameters: Mapping[int, torch.Tensor], plan: Sequence[Sequence[Piece]], rank: int, group: dist.ProcessGroup
) -> None:
    """Fills all pieces of all ranks but this one's with their values there; every rank of the group calls it.

    parameters: contiguous tensors of one dtype and device, by index. plan: the pieces of each rank; `rank` is the
    index of this one in it.
    """
    longest = max(sum(piece.numel for piece in pieces) for pieces in plan)
    if longest == 0:
        return
    flat = {index: parameter.detach().view(-1) for index, parameter in parameters.items()}
    size = min(CHUNK, longest)
    some = next(iter(flat.values()))
    own = some.new_empty(size)
    received = [some.new_empty(size) for _ in plan]
    for begin in range(0, longest, size):
        for view, at in _within(plan[rank], flat, begin, size):
            own[at : at + view.numel()] = view
        with comm.reaching("sharing what the replicas' optimizers have updated"):
            dist.all_gather(received, own, group=group)
        for other, pieces in enumerate(plan):
            if other != rank:
                for view, at in _within(pieces, flat, begin, size):
                    view.copy_(received[other][at : at + view.numel()])


def _within(
    pieces: Sequence[Piece], flat: Mapping[int, torch.Tensor], begin: int, size: int
) -> list[tuple[torch.Tensor, int]]:
    """What of a rank's pieces, laid end to end, is in [begin, begin + size): views, and where in the chunk they are."""
    found = []
    offset = 0
    for piece in pieces:
        low, high = max(offset, begin), min(offset + piece.numel, begin + size)
        if low < high:
            start = piece.start + low - offset
            found.append((flat[piece.index][start : start + high - low], low - begin))
        offset += piece.numel
    return found
