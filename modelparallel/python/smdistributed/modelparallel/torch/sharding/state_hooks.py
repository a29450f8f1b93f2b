"""A sharded model's state_dict is of whole tensors, and one of whole tensors can be loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def install(module: Any) -> None:
    """From now on `module.state_dict()` gathers (all ranks call it), and `load_state_dict` keeps a rank's shard."""
    module._register_state_dict_hook(_gather)
    module.register_load_state_dict_pre_hook(_cut)


def _gather(_module: nn.Module, state_dict: dict[str, Any], _prefix: str, _metadata: Any) -> None:
    for name, value in list(state_dict.items()):
        if hasattr(value, "full_tensor"):
            state_dict[name] = value.full_tensor().detach()


def _cut(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_rest: Any) -> None:
    from torch.distributed.tensor import distribute_tensor

    parameter: Any
    for name, parameter in module.named_parameters():
        value = state_dict.get(prefix + name)
        if hasattr(parameter, "device_mesh") and isinstance(value, torch.Tensor) and not hasattr(value, "to_local"):
            whole = value.to(parameter.to_local().device)
            # Every rank has the whole tensor: nothing is sent.
            state_dict[prefix + name] = distribute_tensor(
                whole, parameter.device_mesh, parameter.placements, src_data_rank=None
            )
