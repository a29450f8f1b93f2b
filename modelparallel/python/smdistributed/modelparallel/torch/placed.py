"""A model whose modules lie on several ranks: what lies where, and what of it is here."""

from __future__ import annotations

from typing import Any, Iterator

import torch
from torch import nn

from . import checks
from .exceptions import SMPUnsupportedError
from .server import remote
from .state import state
from .topology import CommGroup
from .tp import TensorParallelQueries, is_distributed


class PlacedModule(TensorParallelQueries, nn.Module):
    """The wrapper of a module, and where its parts are; the base of DistributedModel."""

    module: nn.Module
    _owner: dict[str, int] | None = None

    @property
    def partitioned(self) -> bool:
        """Whether the modules have been given to ranks: from the first step on."""
        return self._owner is not None

    def owner_of(self, name: str) -> int:
        """Return the pp rank of the module with that qualified name ('' is the model itself).

        Raises:
            SMPUnsupportedError: before the first step.
            SMPValueError: no such module.
        """
        owner = self._placed_owner("owner_of")
        if not isinstance(name, str) or name not in owner:
            checks.refuse("model.owner_of", "name", name, "that of a module in model.module.named_modules()")
        return owner[name]

    @property
    def owners(self) -> dict[str, int]:
        """The pp rank of each module, by qualified name."""
        return dict(self._placed_owner("owners"))

    def get_module(self) -> nn.Module:
        """Return the user's module."""
        return self.module

    def _placed_owner(self, caller: str) -> dict[str, int]:
        if self._owner is None:
            raise SMPUnsupportedError(
                f"model.{caller} before the model is partitioned: call it after the first step, or from a function "
                "given to model.register_post_partition_hook"
            )
        return self._owner

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield (name, module) of this rank's modules."""
        owner, here = self._placed_owner("local_named_modules"), state.server.settings.pp_rank
        for name, module in self.module.named_modules():
            if owner[name] == here:
                yield name, module

    def local_modules(self) -> Iterator[nn.Module]:
        """Yield this rank's modules."""
        return (module for _, module in self.local_named_modules())

    def local_named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield (name, parameter) of this rank's modules; each parameter once.

        Args:
            recurse: False: those of the model itself only.
        """
        return self._local_tensors("_parameters", recurse)

    def local_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yield this rank's parameters."""
        return (parameter for _, parameter in self.local_named_parameters(recurse))

    def local_named_buffers(self, recurse: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, buffer) of this rank's modules; each buffer once."""
        return self._local_tensors("_buffers", recurse)

    def local_buffers(self, recurse: bool = True) -> Iterator[torch.Tensor]:
        """Yield this rank's buffers."""
        return (buffer for _, buffer in self.local_named_buffers(recurse))

    def _local_tensors(self, kind: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for name, module in self.local_named_modules():
            if not recurse and name:
                continue
            for local, tensor in getattr(module, kind).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{name}.{local}" if name else local, tensor

    def replicated_tensors(self, buffers: bool) -> dict[CommGroup, list[torch.Tensor]]:
        """Return this rank's parameters (and buffers) by the group of ranks that hold the same values."""
        found: dict[CommGroup, list[torch.Tensor]] = {CommGroup.DP_GROUP: [], CommGroup.RDP_GROUP: []}
        here = state.server.settings.pp_rank
        seen: set[int] = set()
        for module in self.module.modules():
            if module.__dict__[remote.OWNER] != here:
                continue
            for tensor in [*module._parameters.values(), *(module._buffers.values() if buffers else ())]:
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[reduce_group(tensor)].append(tensor)
        return found


def reduce_group(tensor: torch.Tensor) -> CommGroup:
    """Return the group over which this parameter's gradient is averaged."""
    return CommGroup.RDP_GROUP if is_distributed(tensor) else CommGroup.DP_GROUP
