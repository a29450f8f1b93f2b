"""Fits checkpointing to the partition: groups never cross ranks, and a module that does is refused or left alone."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from ..exceptions import SMPValueError
from ..state import state
from . import remote, settings


def after_partition(model: Any, only: nn.Module | None = None) -> None:
    """Check every checkpointed module of the model against the placement, and group the layers of Sequentials by rank.

    model: the DistributedModel, partitioned. only: the one module to look at.
    Raises SMPValueError where a checkpointed module is split over ranks and the partition is manual.
    """
    for name, module in model.module.named_modules():
        forward = module.__dict__.get("forward")
        if only is not None and module is not only:
            continue
        if isinstance(forward, settings.ModuleForward):
            forward.off = not whole(model, name, module)
        elif isinstance(forward, settings.SequentialForward):
            fit(model, name, forward)


def fit(model: Any, name: str, forward: settings.SequentialForward) -> None:
    """Group the layers of the Sequential `name` by the ranks that own them."""
    owners: list[int | None] = []
    for child_name, child in forward.module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        owners.append(model.owner_of(path) if whole(model, path, child) else None)
    if len(owners) != len(forward.module):
        # named_children leaves out a layer that stands there twice.
        owners = [model.owner_of(f"{name}.{index}" if name else str(index)) for index in range(len(forward.module))]
    forward.replan(owners)
    for (start, stop), group in zip(forward.ranges, forward.chain):
        owner = owners[start]
        if owner is not None:
            remote.place(group, remote.name_of(name, (start, stop), forward.preserve_rng_state), owner)


def whole(model: Any, name: str, module: nn.Module) -> bool:
    """Whether all of a module's tree is on one rank; if not, raise (manual partition) or warn (automatic)."""
    prefix = f"{name}." if name else ""
    owners = {inner: model.owner_of(f"{prefix}{inner}" if inner else name) for inner, _ in module.named_modules()}
    if len(set(owners.values())) == 1:
        return True
    other = next(inner for inner, owner in owners.items() if owner != owners[""])
    split = (
        f"the activations of {name or 'the model'!r} cannot be checkpointed: it is on pp rank {owners['']} and its "
        f"part {other!r} on pp rank {owners[other]}"
    )
    if not state.cfg.auto_partition:
        raise SMPValueError(f"{split}: place all of it on one partition, or checkpoint its parts")
    warnings.warn(f"smp: {split}; it runs without checkpointing", stacklevel=2)
    return False
