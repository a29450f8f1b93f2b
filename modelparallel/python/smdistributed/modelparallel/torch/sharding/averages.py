"""The gradients of a sharded model that torch's fully_shard leaves as they are, averaged at the end of a step.

It averages those of shards over the ranks that have the same slices. What is left: parameters that all ranks have
whole, and shards of what tensor parallelism has not cut, over the tensor-parallel ranks.
"""

from __future__ import annotations

from typing import Sequence

import torch
import torch.distributed as dist
from torch import nn

from ..state import state
from ..topology import CommGroup


def complete(parameters: Sequence[nn.Parameter]) -> None:
    """Averages over the data-parallel ranks what is not averaged yet; all of them call it."""
    from ..tp import is_distributed

    left: dict[CommGroup, list[nn.Parameter]] = {}
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        if not hasattr(parameter, "to_local"):
            kind = CommGroup.RDP_GROUP if is_distributed(parameter) else CommGroup.DP_GROUP
        elif state.topology.tp > 1 and not is_distributed(parameter):
            kind = CommGroup.TP_GROUP
        else:
            continue
        left.setdefault(kind, []).append(parameter)
    for kind in (CommGroup.DP_GROUP, CommGroup.RDP_GROUP, CommGroup.TP_GROUP):
        if kind in left:
            _average(left[kind], state.groups.process[kind])


def _average(parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Averages gradients, or this rank's shards of them, over the group, as one tensor a dtype."""
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for alike in by_dtype.values():
        grads = [_local(one if one.grad is None else one.grad) for one in alike]
        values = [grad if one.grad is not None else torch.zeros_like(grad) for one, grad in zip(alike, grads)]
        # Who has a gradient at all travels along: where nobody has, none may appear.
        exists = grads[0].new_tensor([float(one.grad is not None) for one in alike])
        flat = torch.cat([*(value.reshape(-1) for value in values), exists]).div_(dist.get_world_size(group))
        dist.all_reduce(flat, group=group)
        offset = 0
        for parameter, value, exist in zip(alike, values, flat[-len(alike) :].tolist()):
            if exist > 0:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                _local(parameter.grad).copy_(flat[offset : offset + value.numel()].view_as(value))
            offset += value.numel()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found.detach()
