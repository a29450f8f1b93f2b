"""Collectives over the tensor-parallel group on plain tensors, without gradients; functions.py makes them
differentiable.

Every function leaves its input as it is, and returns it unchanged where the group has one rank. t is the group's size.
Where one rank traces the model alone (world.alone), each makes a tensor of the right shape from its input.
"""

from __future__ import annotations

from typing import ContextManager

import torch
import torch.distributed as dist
from torch import Tensor

from .. import marks
from ..exceptions import SMPValueError
from . import world


def split(x: Tensor, dim: int) -> Tensor:
    """This rank's one of t equal pieces of `dim`; communicates nothing."""
    return _pieces(x, dim)[world.tp_rank()]


def all_gather(x: Tensor, dim: int) -> Tensor:
    """The tensors of all ranks, of one shape, joined along `dim` in rank order."""
    if world.tp_size() == 1:
        return x
    if world.alone():
        return torch.cat([x] * world.tp_size(), dim)
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world.tp_size())]
    with _counted("all_gather", x):
        dist.all_gather(parts, x.contiguous(), group=world.tp_group())
    return torch.cat(parts, dim)


def all_reduce(x: Tensor) -> Tensor:
    """The sum over ranks."""
    if world.tp_size() == 1:
        return x
    total = x.clone(memory_format=torch.contiguous_format)
    if world.alone():
        return total
    with _counted("all_reduce", total):
        dist.all_reduce(total, group=world.tp_group())
    return total


def exchange(x: Tensor, split_dim: int, join_dim: int) -> Tensor:
    """All-to-all: piece j of `split_dim` goes to rank j; what comes in is joined along `join_dim` in rank order."""
    if world.tp_size() == 1:
        return x
    return torch.cat(_swapped(x, split_dim).unbind(0), join_dim)


def reduce_scatter(x: Tensor, dim: int) -> Tensor:
    """This rank's piece of `dim` of the sum over ranks."""
    if world.tp_size() == 1:
        return x
    if x.device.type != "cuda" or world.alone():
        # Same bytes on the wire as a reduce-scatter, and every back end has it.
        return _swapped(x, dim).sum(0)
    pieces = torch.stack(_pieces(x, dim))
    found = torch.empty_like(pieces[0])
    with _counted("reduce_scatter", pieces):
        dist.reduce_scatter_tensor(found, pieces, group=world.tp_group())
    return found


def _swapped(x: Tensor, dim: int) -> Tensor:
    """[t, ...]: the piece of each rank's `dim` that belongs to this rank."""
    pieces = torch.stack(_pieces(x, dim))
    if world.alone():
        return pieces
    found = torch.empty_like(pieces)
    with _counted("all_to_all", pieces):
        dist.all_to_all_single(found, pieces, group=world.tp_group())
    return found


def _counted(name: str, x: Tensor) -> ContextManager[None]:
    return marks.blocked(name, x.numel() * x.element_size())


def _pieces(x: Tensor, dim: int) -> list[Tensor]:
    if x.shape[dim] % world.tp_size():
        raise SMPValueError(
            f"dimension {dim} of a tensor of shape {tuple(x.shape)} has {x.shape[dim]} elements: "
            f"it must be a multiple of tensor_parallel_degree, {world.tp_size()}"
        )
    return list(x.chunk(world.tp_size(), dim))
