"""Where this rank stands in its tensor-parallel group, and how that group was configured: the only reader of `state`
here."""

from __future__ import annotations

import torch.distributed as dist

from ..partition.trace import is_tracing
from ..state import state
from ..topology import CommGroup


def tp_size() -> int:
    """Number of ranks that share each distributed weight; raises NotInitializedError before smp.init()."""
    return state.require().topology.tp


def tp_rank() -> int:
    """Index of this rank in its tensor-parallel group."""
    return state.require().topology.coordinates(state.launch.rank).tp


def tp_group() -> dist.ProcessGroup:
    """The group for tensors of the training device."""
    return state.require().groups.process[CommGroup.TP_GROUP]


def control_group() -> dist.ProcessGroup:
    """The group for CPU tensors that steer (shapes, seeds), so that no device stream has to be waited for."""
    return state.require().groups.control[CommGroup.TP_GROUP]


def alone() -> bool:
    """True while this rank traces the model, which the other ranks of its group do not: nothing may be exchanged."""
    return is_tracing()


def prescaled() -> bool:
    """True if all tensor-parallel ranks read the same batch (`prescaled_batch`)."""
    return state.require().cfg.prescaled_batch


def sliced_activations() -> bool:
    """True if activations between the sublayers of a transformer are kept as slices of the hidden dimension.

    That is `optimize="memory"`; with "speed" each rank keeps them whole and exchanges less often.
    """
    return state.require().cfg.optimize == "memory"
