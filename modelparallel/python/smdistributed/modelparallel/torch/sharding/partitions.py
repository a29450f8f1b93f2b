"""A rank's part of the model under the names that DeepSpeed's ZeRO stage 3 gave it, which published clients read.

Of a parameter: `ds_shape` and `ds_numel`, the whole one's; `ds_tensor`, this rank's part in one dimension, and its
`ds_numel`. Of an optimizer: `fp32_partitioned_groups_flat`. The parts of the ranks of a sharding group together are
every element once.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.distributed as dist
from torch import nn


def name(parameter: Any, group: dist.ProcessGroup) -> None:
    """Gives a parameter its names; it is a sharded one, or whole on every rank of `group`."""
    data = parameter.detach()
    if hasattr(data, "to_local"):
        part = data.to_local().reshape(-1)
    else:
        pieces = data.reshape(-1).tensor_split(dist.get_world_size(group))
        part = pieces[dist.get_rank(group)]
    part.ds_numel = part.numel()
    parameter.ds_tensor = part
    parameter.ds_shape = parameter.shape
    parameter.ds_numel = parameter.numel()


class FlatGroups:
    """For each group of an optimizer's parameters one float32 tensor: this rank's parts, one behind the other.

    A copy, for those who look: `refresh` brings it up to what training has made of the weights.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        self._groups = groups
        self.tensors = [torch.cat([_values(one).float() for one in group] or [torch.empty(0)]) for group in groups]

    def refresh(self) -> None:
        """Take the weights as they are now."""
        for group, flat in zip(self._groups, self.tensors):
            offset = 0
            for parameter in group:
                values = _values(parameter)
                flat[offset : offset + values.numel()].copy_(values)
                offset += values.numel()


def _values(parameter: Any) -> torch.Tensor:
    found: torch.Tensor = parameter.ds_tensor
    return found
