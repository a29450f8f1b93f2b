"""A distributed model's state as dictionaries: this rank's part, the whole, and loading either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import comm
from .server import remote
from .state import state
from .topology import CommGroup, RankType

if TYPE_CHECKING:
    from .model import DistributedModel

PARTIAL = "_smp_is_partial"


def local_keys(model: DistributedModel) -> set[str]:
    """Return the keys of the plain module's state that lie on this rank."""
    owner, here = model.owners, state.server.settings.pp_rank
    names = {name for name, rank in owner.items() if rank == here}
    shared = {id(t): key for key, t in model.local_named_parameters()}
    keys: set[str] = set()
    for key, value in model.module.state_dict(keep_vars=True).items():
        holder = key.rpartition(".")[0]
        while holder and holder not in owner:  # an extra-state key, or a key that a module's own hook made
            holder = holder.rpartition(".")[0]
        if holder in names or id(value) in shared:
            keys.add(key)
    return keys


def local_state_dict(model: DistributedModel) -> dict[str, Any]:
    """Return this rank's part, and the mark of a part."""
    model.owner_of("")
    keys = local_keys(model)
    found = {key: value for key, value in model.module.state_dict().items() if key in keys}
    return {**found, PARTIAL: True}


def state_dict(model: DistributedModel, gather_to_rank0: bool) -> dict[str, Any]:
    """Return the whole state, with the keys of the plain module, in the order of its own state_dict."""
    if not model.partitioned or state.server.settings.pp_size == 1:
        whole = dict(model.module.state_dict())
    else:
        local = {key: value for key, value in local_state_dict(model).items() if key != PARTIAL}
        local = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in local.items()}
        whole = _merged(_gathered(local, gather_to_rank0))
        if whole:
            whole = {key: whole[key] for key in model.module.state_dict() if key in whole}
    if state.cfg.tensor_parallel_degree > 1:
        from . import tp

        whole = tp.gather_full(model.module, whole)
    return whole if not gather_to_rank0 or comm.mp_rank() == 0 else {}


def _gathered(local: dict[str, Any], to_first: bool) -> list[dict[str, Any]]:
    if not to_first or state.cfg.tensor_parallel_degree > 1:
        return comm.allgather(local, CommGroup.PP_GROUP)
    if comm.pp_rank() != 0:
        comm.send(local, 0, RankType.PP_RANK)
        return []
    return [local, *(comm.recv_from(rank, RankType.PP_RANK) for rank in range(1, comm.pp_size()))]


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for part in parts:
        whole.update({key: value for key, value in part.items() if key != PARTIAL})
    return whole


def load_state_dict(model: DistributedModel, given: dict[str, Any], strict: bool, same_partition: bool) -> Any:
    """Load a whole or partial state now, or when the model is partitioned where its parameters have no memory yet."""
    partial = bool(given.get(PARTIAL))
    values = {key: value for key, value in given.items() if key != PARTIAL}
    if not model.partitioned and any(parameter.device.type == "meta" for parameter in model.module.parameters()):
        model.register_post_partition_hook(
            lambda _model, _optimizer: load_state_dict(model, given, strict, same_partition) and None
        )
        return None
    if partial and not (same_partition and model.partitioned):
        values = _merged(comm.allgather(values, CommGroup.PP_GROUP))
    elif not partial and state.cfg.tensor_parallel_degree > 1:
        from . import tp

        values = tp.take_local(model.module, values)
    if not model.partitioned or state.server.settings.pp_size == 1:
        return model.module.load_state_dict(values, strict=strict)
    return _load_local(model, values, strict, partial and same_partition)


def _load_local(model: DistributedModel, values: dict[str, Any], strict: bool, only_local: bool) -> Any:
    keys = local_keys(model)
    expected = keys if only_local else set(model.module.state_dict())
    local = {key: value for key, value in values.items() if key in keys}
    result = model.module.load_state_dict(local, strict=False)
    missing = sorted(expected - set(values))
    unexpected = sorted(set(values) - set(model.module.state_dict()))
    if strict and (missing or unexpected):
        name = type(model.module).__name__
        lines = [f"Missing key(s): {', '.join(missing)}."] * bool(missing)
        lines += [f"Unexpected key(s): {', '.join(unexpected)}."] * bool(unexpected)
        raise RuntimeError(f"Error(s) in loading state_dict for {name}: {' '.join(lines)}")
    return type(result)(missing, unexpected)


def gather_to_cpu(model: DistributedModel) -> None:
    """Put the whole model on every rank, in host memory; it is then a plain module again."""
    whole = state_dict(model, gather_to_rank0=False)
    for name, module in model.module.named_modules():
        for table in (module._parameters, module._buffers):
            for local, tensor in table.items():
                key = f"{name}.{local}" if name else local
                if tensor is not None and key in whole:
                    tensor.data = whole[key].to("cpu").clone()
        remote.unmark(module)
