"""Which parameters are slices of a larger weight, and the ways between slices and full weights."""

from __future__ import annotations

from typing import Any, Mapping

from torch import Tensor, nn

from . import collectives, world

_MARK = "_smp_tp_dim"
_SCALED = "_smp_tp_scaled"


def mark(parameter: Tensor, dim: int) -> None:
    """Says that `parameter` is this rank's slice, of dimension `dim`, of a weight that the tensor-parallel ranks
    share."""
    setattr(parameter, _MARK, dim)


def mark_scaled(parameter: Tensor) -> None:
    """Says that `parameter` sees the samples of all tensor-parallel ranks, and its gradient is divided for that
    already."""
    setattr(parameter, _SCALED, True)


def shard_dim(parameter: Tensor) -> int | None:
    """The dimension of which `parameter` is a slice; None if it is whole."""
    found: int | None = getattr(parameter, _MARK, None)
    return found


def is_distributed(parameter: Tensor) -> bool:
    """True if the parameter is a slice: its gradient is averaged over RDP_GROUP, those of others over DP_GROUP."""
    return shard_dim(parameter) is not None


def is_scaled_batch(parameter: Tensor) -> bool:
    """True if the parameter is applied to the samples of all tensor-parallel ranks, so lies inside a distributed
    module."""
    return bool(getattr(parameter, _SCALED, False))


def merge(parameter: Tensor, dim: int | None = None) -> Tensor:
    """The full weight, detached, of a slice; all ranks of the tensor-parallel group must call. Whole ones as they
    are."""
    dim = shard_dim(parameter) if dim is None else dim
    return parameter.detach() if dim is None else collectives.all_gather(parameter.detach(), dim)


def dimensions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """For each key of `module.state_dict()` that is a slice: the dimension, and its size in the full weight.

    Known to the modules, so also where another pipeline rank has the parameters and they are empty here.
    """
    return {
        f"{name}.{key}" if name else key: found
        for name, each in module.named_modules(remove_duplicate=False)
        if isinstance(each, SlicedLoading)
        for key, found in each.slices().items()
    }


def gather_full(module: nn.Module, local: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a state_dict of `module` with slices replaced by full weights, the others as they are.

    All ranks of the tensor-parallel group must call, with the same keys in the same order.
    """
    dims = dimensions(module)
    return {
        key: collectives.all_gather(value.detach(), dims[key][0]) if key in dims else value
        for key, value in local.items()
    }


def take_local(module: nn.Module, full: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a full state_dict of `module` cut to this rank's slices; what is cut already stays as it is."""
    dims = dimensions(module)
    return {key: _cut(value, *dims[key]) if key in dims else value for key, value in full.items()}


def full_state_dict(module: nn.Module) -> dict[str, Any]:
    """`module.state_dict()` with full weights; all ranks of the tensor-parallel group must call."""
    return gather_full(module, module.state_dict())


def _cut(value: Any, dim: int, size: int) -> Any:
    if not isinstance(value, Tensor) or value.dim() <= dim or value.shape[dim] != size or world.tp_size() == 1:
        return value
    return collectives.split(value, dim)


class SlicedLoading(nn.Module):
    """A module that holds slices: its load_state_dict also takes full weights, and keeps its own part of them."""

    def slices(self) -> dict[str, tuple[int, int]]:
        """For each of its own parameters that is a slice: the dimension, and its size in the full weight."""
        return {}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, (dim, size) in self.slices().items():
            if prefix + name in state_dict:
                state_dict[prefix + name] = _cut(state_dict[prefix + name], dim, size)
        super()._load_from_state_dict(state_dict, prefix, *args)
