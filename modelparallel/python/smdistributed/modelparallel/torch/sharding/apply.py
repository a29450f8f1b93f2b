"""Shards a model: the large parameters by torch's fully_shard, the small ones stay whole on every rank."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..exceptions import SMPUnsupportedError
from ..state import state
from . import averages, partitions, state_hooks
from .units import units

# By the id of a parameter that was replaced: itself (so that the id stays its own) and its successor.
_replaced: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
_groups: list[dist.ProcessGroup] = []


def shard(module: nn.Module) -> None:
    """Shards the parameters of `module` in place; every rank calls it, the parameters being equal on all.

    Of a model in half precision the shards become float32, and are gathered in half precision. Parameters with fewer
    elements than sdp_param_persistence_threshold stay whole. Slices that tensor parallelism has made are sharded over
    the ranks that have the same. With at most sdp_max_live_parameters elements in all, what
    is gathered for the forward pass stays until the backward pass. Raises SMPUnsupportedError for a torch that cannot.
    """
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise SMPUnsupportedError("sharded_data_parallel_degree needs torch 2.7 or later") from error
    if "ignored_params" not in inspect.signature(fully_shard).parameters:
        raise SMPUnsupportedError("sharded_data_parallel_degree needs torch 2.7 or later")
    cfg = state.cfg
    mesh = _mesh(cfg.sharded_data_parallel_degree)
    _groups[:] = [mesh["shard"].get_group()]
    before = dict(module.named_parameters())
    small = {one for one in before.values() if one.numel() < cfg.sdp_param_persistence_threshold}
    half = torch.bfloat16 if cfg.bf16 else torch.float16 if cfg.fp16 else None
    for parameter in before.values():
        if half is not None and parameter.is_floating_point():
            parameter.data = parameter.data.to(half if parameter in small else torch.float32)
    options: dict[str, Any] = {
        "mesh": mesh if mesh["replicate"].size() > 1 else mesh["shard"],
        "ignored_params": small,
        "reshard_after_forward": sum(one.numel() for one in before.values()) > cfg.sdp_max_live_parameters,
        "mp_policy": _policy(half),
    }
    for unit in units(module, {id(one) for one in small}):
        fully_shard(unit, **options)
    fully_shard(module, **{**options, "mp_policy": _policy(half, root=True)})
    for name, parameter in module.named_parameters():
        if parameter is not before[name]:
            _replaced[id(before[name])] = (before[name], parameter)
            # What is marked on a parameter, as that it is a slice, is true of its shards.
            parameter.__dict__.update(before[name].__dict__)
        partitions.name(parameter, _groups[0])
    state_hooks.install(module)
    state.after_backward.append(lambda: averages.complete(list(module.parameters())))


def _mesh(degree: int) -> Any:
    """The ranks that have the same slices as this one, as a mesh of replicas by shards."""
    from torch.distributed.device_mesh import DeviceMesh

    topology = state.topology
    ranks = torch.empty(topology.tp, topology.rdp // degree, degree, dtype=torch.int)
    for rank in range(topology.size):
        place = topology.coordinates(rank)
        ranks[place.tp, place.rdp // degree, place.rdp % degree] = rank
    names = ("replicate", "shard")
    device = state.server.settings.device.type
    if topology.tp == 1:
        return DeviceMesh(device, ranks[0], mesh_dim_names=names)
    return DeviceMesh(device, ranks, mesh_dim_names=("tensor", *names))[names]


def _policy(half: torch.dtype | None, root: bool = False) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if half is None:
        return MixedPrecisionPolicy()
    # The model's outputs are float32, so that losses are; between its layers nothing is converted back.
    output = torch.float32 if root else None
    return MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, output_dtype=output)


def current_parameter(parameter: nn.Parameter) -> nn.Parameter:
    """What stands in the model for a parameter that it had before it was sharded."""
    found = _replaced.get(id(parameter))
    return parameter if found is None else found[1]


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether this rank has a part of the tensor only."""
    return hasattr(tensor, "to_local")


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, sharing its memory; the tensor itself if it is not sharded."""
    found: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return found


def shard_group() -> dist.ProcessGroup | None:
    """The ranks that together have all shards, this one among them; None without sharding."""
    return _groups[0] if _groups else None
