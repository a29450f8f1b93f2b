"""Which of an optimizer's parameters are this rank's, once the model is on its ranks."""

from __future__ import annotations

from typing import Iterable

import torch

from .. import sharding
from ..exceptions import SMPValueError
from ..state import state
from ..topology import CommGroup


def is_placed() -> bool:
    """Whether it is known which rank owns what: always where there is one partition."""
    model = state.model
    return state.topology.pp == 1 if model is None else bool(model.partitioned)


def owned_ids() -> set[int] | None:
    """The ids of the parameters that this rank trains; None if there is no model to ask, so all are."""
    if state.model is None:
        return None
    return {id(parameter) for parameter in state.model.local_parameters()}


def check_trained(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Raise SMPValueError for parameters that tensor parallelism has replaced: an optimizer of them trains nothing."""
    if state.topology.tp == 1 or state.model is None:
        return
    known = {id(parameter) for parameter in state.model.module.parameters()}
    stale = [one for one in parameters if id(sharding.current_parameter(one)) not in known]
    if stale:
        raise SMPValueError(
            f"smp.DistributedOptimizer: {len(stale)} parameter(s) of the optimizer, the first of shape "
            f"{list(stale[0].shape)}, are not the model's: with tensor parallelism smp.DistributedModel makes new "
            "ones, so build the optimizer after it"
        )


def replicas_of(parameter: torch.Tensor) -> CommGroup:
    """The kind of group whose ranks hold the same values of this parameter."""
    if state.topology.tp > 1 and is_tensor_parallel(parameter):
        return CommGroup.RDP_GROUP
    return CommGroup.DP_GROUP


def is_tensor_parallel(parameter: torch.Tensor) -> bool:
    """Whether the parameter is a slice of a larger one that the tensor parallel ranks share."""
    if state.topology.tp == 1:
        return False
    from ..tp import is_distributed

    return is_distributed(parameter)
