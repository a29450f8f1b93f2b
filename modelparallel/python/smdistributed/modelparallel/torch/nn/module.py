"""What all distributed modules have in common."""

from __future__ import annotations

from typing import Any

from .. import checks
from ..exceptions import SMPConfigError
from ..tp import shards, world


class DistributedModule(shards.SlicedLoading):
    """Base class of the modules whose weights are split over the tensor-parallel group.

    A subclass takes and returns what its plain counterpart does, of this rank's own samples; sizes in its arguments are
    those of the plain module. All ranks of the group must create it, and call it, in the same order.
    """

    @classmethod
    def obstacle(cls, **arguments: Any) -> str | None:
        """Why a module of these constructor arguments cannot be split over the group, or None if it can."""
        del arguments
        return None


def not_whole(least: int, **sizes: int) -> str | None:
    """The first of these that is no whole number, or less than `least`, as the beginning of a sentence; else None."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < least:
            return f"{name} is {checks.shown(size)}, not a whole number of at least {least}"
    return None


def not_divisible(**sizes: int) -> str | None:
    """The first of these sizes that is none, or that tensor_parallel_degree does not divide, as `not_whole`."""
    wrong = not_whole(1, **sizes)
    if wrong:
        return wrong
    for name, size in sizes.items():
        if size % world.tp_size():
            return f"{name} is {size}, not a multiple of tensor_parallel_degree, {world.tp_size()}"
    return None


def refuse(kind: str, reason: str | None) -> None:
    """Raises SMPConfigError if there is a reason why a module of this kind cannot be created."""
    if reason:
        raise SMPConfigError(f"{kind}: {reason}: choose one that fits, or use the plain module")
