"""The API of releases 1.0 to 1.3, deprecated since: ``import smdistributed.dataparallel.torch.distributed as dist``.

Every function forwards to ``torch.distributed``, so that old and new calls may be mixed in one script. Tensors are as
there: dense, on the CPU, of the same shape and type on all ranks. Errors are those of
``smdistributed.dataparallel.exceptions``.
"""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from smdistributed.dataparallel.torch import torch_smddp  # noqa: F401  (registers the backend)
from smdistributed.dataparallel.torch._deprecation import warn_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    Group = dist.ProcessGroup | object | None

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
]

warn_once()


class ReduceOp(enum.Enum):
    """How :func:`all_reduce` combines the tensors of the ranks."""

    AVERAGE = "avg"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


_TORCH_OPS = {
    ReduceOp.AVERAGE: dist.ReduceOp.AVG,
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}


class group:  # noqa: N801  (the name that scripts use)
    """Groups of ranks. These releases knew one; a group of ``torch.distributed`` does as well."""

    WORLD = object()


def torch_group(chosen: Group) -> dist.ProcessGroup | None:
    """``torch.distributed``'s name for a group given as here."""
    return chosen if isinstance(chosen, dist.ProcessGroup) else None


def is_available() -> bool:
    """True: the module has been imported, so the compiled library is there."""
    return True


def init_process_group(*_args: object, **_kwargs: object) -> None:
    """Meet the other ranks. All arguments are ignored: ranks and addresses come from the launcher's environment.

    Does nothing where ``torch.distributed`` is initialised already.
    """
    if not dist.is_initialized():
        dist.init_process_group(backend="smddp")


def is_initialized() -> bool:
    """Whether :func:`init_process_group` has been called, here or in ``torch.distributed``."""
    return dist.is_initialized()


def get_world_size(group: Group = group.WORLD) -> int:
    """Number of ranks in the group."""
    return dist.get_world_size(torch_group(group))


def get_rank(group: Group = group.WORLD) -> int:
    """This process's rank in the group."""
    return dist.get_rank(torch_group(group))


def get_local_rank() -> int:
    """This process's rank among those of its host, for ``torch.cuda.set_device`` and the like."""
    return int(os.environ["SMDATAPARALLEL_LOCAL_RANK"])


def all_reduce(
    tensor: torch.Tensor,
    op: ReduceOp | dist.ReduceOp = ReduceOp.SUM,
    group: Group = group.WORLD,
    async_op: bool = False,
) -> dist.Work | None:
    """Replace ``tensor``, on all ranks, by the reduction of those of all ranks; the result has the same bits on all.

    Returns a handle to wait for with ``async_op``, else nothing; so do all functions below.
    """
    torch_op: Any = _TORCH_OPS[op] if isinstance(op, ReduceOp) else op
    work: dist.Work | None = dist.all_reduce(tensor, torch_op, torch_group(group), async_op)
    return work


def broadcast(
    tensor: torch.Tensor, src: int = 0, group: Group = group.WORLD, async_op: bool = False
) -> dist.Work | None:
    """Replace ``tensor``, on all ranks, by that of rank ``src``."""
    work: dist.Work | None = dist.broadcast(tensor, src, torch_group(group), async_op)
    return work


def all_gather(
    tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Group = group.WORLD, async_op: bool = False
) -> dist.Work | None:
    """Fill ``tensor_list``, one tensor a rank, with the ``tensor`` of each."""
    work: dist.Work | None = dist.all_gather(tensor_list, tensor, torch_group(group), async_op)
    return work


def all_to_all_single(
    output_t: torch.Tensor,
    input_t: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = group.WORLD,
    async_op: bool = False,
) -> dist.Work | None:
    """Cut ``input_t`` along its first dimension, send part ``r`` to rank ``r``, and join what came into ``output_t``.

    Parts are equal, or have the sizes given (rows, one number a rank).
    """
    outputs = None if output_split_sizes is None else list(output_split_sizes)
    inputs = None if input_split_sizes is None else list(input_split_sizes)
    work: dist.Work | None = dist.all_to_all_single(output_t, input_t, outputs, inputs, torch_group(group), async_op)
    return work


def barrier(group: Group = group.WORLD, async_op: bool = False) -> dist.Work | None:
    """Return when every rank has called it."""
    work: dist.Work | None = dist.barrier(torch_group(group), async_op)
    return work
