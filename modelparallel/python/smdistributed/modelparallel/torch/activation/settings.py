"""`set_activation_checkpointing`: marks an instance of a module, and what its forward then does."""

from __future__ import annotations

from typing import Any, Callable

from torch import nn

from .. import checks
from ..exceptions import SMPValueError
from ..state import state
from . import placement
from .group import Group
from .recompute import recomputed
from .strategy import groups, largest_group


class ModuleForward:
    """Takes the place of one instance's `forward` and recomputes its activations.

    off: the module's tree is split over ranks, so that it runs as it is (automatic partitioning only).
    """

    def __init__(self, module: nn.Module, preserve_rng_state: bool) -> None:
        self.module = module
        self.preserve_rng_state = preserve_rng_state
        self.off = False
        # Of the instance: somebody else may have replaced it too. Of the class it is looked up at each call, because a
        # bound method kept here would still belong to this module in a copy of it.
        self.replaced: Callable[..., Any] | None = module.__dict__.get("forward")

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """The forward that was there before."""
        if self.replaced is not None:
            return self.replaced(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward, checkpointed."""
        if self.off:
            return self.plain(*args, **kwargs)
        return recomputed(self.plain, args, kwargs, preserve_rng_state=self.preserve_rng_state, modules=[self.module])


class SequentialForward:
    """Takes the place of a Sequential's `forward` and runs its layers in checkpointed groups."""

    def __init__(self, module: nn.Sequential, preserve_rng_state: bool, strategy: str) -> None:
        self.module = module
        self.preserve_rng_state = preserve_rng_state
        self.strategy = strategy
        self.replan([0] * len(module))

    def replan(self, owners: list[int | None]) -> None:
        """Group the layers anew; owners: the pp_rank of each, None for a layer that is not to be checkpointed."""
        layers = list(self.module)
        self.owners = owners
        self.ranges = groups(owners, self.strategy)
        # A Sequential as well, so that consecutive groups on other ranks are sent on as consecutive layers are.
        self.chain = nn.Sequential(
            *(
                layers[start] if owners[start] is None else Group(layers[start:stop], self.preserve_rng_state)
                for start, stop in self.ranges
            )
        )

    def __call__(self, input: Any) -> Any:  # noqa: A002 - the name that nn.Sequential gives it
        """Run the layers, each group in one checkpoint."""
        if sum(stop - start for start, stop in self.ranges) != len(self.module):
            self.replan([0] * len(self.module))
        run: Callable[[Any], Any] = self.chain.forward
        return run(input)


def set_activation_checkpointing(
    module: nn.Module, preserve_rng_state: bool = True, pack_args_as_tuple: bool = False, strategy: str = "each"
) -> None:
    """Checkpoint the activations of this instance of a module, in every call of it.

    module: any nn.Module, before or after it is wrapped; of an nn.Sequential the layers are checkpointed, in groups.
    preserve_rng_state: recompute with the random numbers of the forward pass, so that dropout drops the same.
    pack_args_as_tuple: for an nn.Sequential only; accepted and not needed, any structure of arguments works.
    strategy: for an nn.Sequential only: "each" layer alone; "contiguous", all that follow one another on one rank;
    "group_x", up to x that do.

    A module whose tree is split over ranks cannot be checkpointed: with manual partitioning that is an SMPValueError at
    the first step, with automatic partitioning a warning, and the module (of a Sequential the layer) runs as it is.
    Raises SMPValueError for anything but a module, or for a strategy or a tuple where the module is no Sequential.
    """
    check_module(module, "set_activation_checkpointing")
    largest_group(strategy)
    for name, value in (("preserve_rng_state", preserve_rng_state), ("pack_args_as_tuple", pack_args_as_tuple)):
        checks.flag("smp.set_activation_checkpointing", name, value)
    if isinstance(module.__dict__.get("forward"), (ModuleForward, SequentialForward)):
        before = getattr(module.__dict__.pop("forward"), "replaced", None)
        if before is not None:
            module.__dict__["forward"] = before
    if isinstance(module, nn.Sequential):
        module.__dict__["forward"] = SequentialForward(module, preserve_rng_state, strategy)
    elif strategy != "each" or pack_args_as_tuple:
        given = f"strategy={strategy!r}" if strategy != "each" else "pack_args_as_tuple=True"
        raise SMPValueError(
            f"set_activation_checkpointing: {given} is for an nn.Sequential, and this is a {type(module).__name__}: "
            "leave the argument out, or pass the nn.Sequential that holds the layers"
        )
    else:
        module.__dict__["forward"] = ModuleForward(module, preserve_rng_state)
    if state.model is not None and state.model.partitioned:
        placement.after_partition(state.model, only=module)


def check_module(module: Any, name: str) -> None:
    """Raise SMPValueError unless it is a module."""
    if not isinstance(module, nn.Module):
        raise SMPValueError(
            f"{name} takes an nn.Module, not a {type(module).__name__}: smp checkpoints whole modules; for a function "
            "use torch.utils.checkpoint.checkpoint(function, ..., use_reentrant=False)"
        )
