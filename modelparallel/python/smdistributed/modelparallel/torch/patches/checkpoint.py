"""`checkpoint` and `checkpoint_sequential`: call a module on its own rank, and recompute its activations later."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..activation import placement, remote
from ..activation.group import Group
from ..activation.recompute import tracing
from ..activation.settings import ModuleForward, SequentialForward, check_module
from ..activation.strategy import largest_group
from ..exceptions import SMPValueError
from ..state import state

__all__ = ["checkpoint", "checkpoint_sequential"]


def checkpoint(module: nn.Module, *args: Any, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """module(*args, **kwargs), its activations recomputed in the backward pass; for use inside a forward.

    The module may be on any rank: its activations are freed and recomputed there. Its tree must be on one rank: with
    manual partitioning anything else is an SMPValueError, with automatic partitioning a warning and a plain call.
    preserve_rng_state: recompute with the random numbers of the forward pass.
    Raises SMPValueError for anything but a module.
    """
    check_module(module, "checkpoint")
    marked = isinstance(module.__dict__.get("forward"), (ModuleForward, SequentialForward))
    if marked or tracing() or not torch.is_grad_enabled():
        return module(*args, **kwargs)
    group = Group([module], preserve_rng_state)
    model = state.model
    if model is not None and model.partitioned:
        name = remote.qualified_name(model, module)
        if name is not None:
            if not _whole(model, name, module):
                return module(*args, **kwargs)
            remote.place(group, remote.name_of(name, None, preserve_rng_state), model.owner_of(name))
    return group(*args, **kwargs)


def checkpoint_sequential(
    sequential_module: nn.Sequential,
    input: Any,  # noqa: A002 - the published name
    strategy: str = "each",
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,  # noqa: ARG001 - published; not needed, any structure of arguments works
) -> Any:
    """sequential_module(input), its layers checkpointed in groups; for use inside a forward.

    Layers may be on several ranks; each layer's own tree must be on one. `strategy`, `preserve_rng_state` and
    `pack_args_as_tuple` as for `set_activation_checkpointing`. Raises SMPValueError for anything but an nn.Sequential.
    """
    if not isinstance(sequential_module, nn.Sequential):
        raise SMPValueError(
            f"checkpoint_sequential takes an nn.Sequential, not a {type(sequential_module).__name__}: "
            "use checkpoint(...)"
        )
    largest_group(strategy)
    marked = isinstance(sequential_module.__dict__.get("forward"), SequentialForward)
    if marked or tracing() or not torch.is_grad_enabled():
        return sequential_module(input)
    return _plan(sequential_module, preserve_rng_state, strategy)(input)


def _plan(module: nn.Sequential, preserve_rng_state: bool, strategy: str) -> SequentialForward:
    """The groups of a Sequential, made once for a placement."""
    model = state.model
    placed = model is not None and model.partitioned
    plans: dict[Any, SequentialForward] = module.__dict__.setdefault("_smp_checkpoint_plans", {})
    key = (preserve_rng_state, strategy, len(module), placed)
    if key not in plans:
        plan = SequentialForward(module, preserve_rng_state, strategy)
        name = remote.qualified_name(model, module) if placed else None
        if name is not None:
            placement.fit(model, name, plan)
        plans[key] = plan
    return plans[key]


def _whole(model: Any, name: str, module: nn.Module) -> bool:
    """As placement.whole, asked once a module."""
    known = module.__dict__.get("_smp_checkpoint_whole")
    if known is None:
        known = module.__dict__["_smp_checkpoint_whole"] = placement.whole(model, name, module)
    return bool(known)
