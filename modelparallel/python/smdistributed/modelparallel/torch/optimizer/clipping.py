"""`smp.clip_grad_norm_`: torch.nn.utils.clip_grad_norm_ by the norm of the whole model, not of one rank's part."""

from __future__ import annotations

import collections.abc
import math
from typing import Any, Iterable

import torch

from .. import checks, sharding
from ..exceptions import SMPUnsupportedError, SMPValueError
from ..refusals import refuse_inside_step
from ..state import state
from . import norms


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scale gradients down so that their norm over all ranks of the replica is at most `max_norm`.

    All ranks of a replica call it, between the step function and `optimizer.step()`; with sharded data parallelism all
    ranks. torch.nn.utils.clip_grad_norm_ would take the norm of this rank's modules alone. transformers' Trainer, and
    whatever else clips by accelerate's Accelerator, needs nothing: smp.init lets that call this.

    Args:
        parameters: `model.parameters()`, or some of them, the same on all ranks; those without a gradient, as of other
            ranks' modules, count nothing.
        max_norm: the largest norm that is left as it is.
        norm_type: 2.0, another positive order, or infinity for the largest element.
        error_if_nonfinite: refuse a norm that is infinite or not a number, which would spoil the gradients.

    Returns:
        The norm before, a scalar in float32, the same on all ranks of the replica.

    Raises:
        SMPUnsupportedError: inside a step, or for gradients that carry a loss scale of fp16.
        SMPValueError: a norm or an order that is no number allowed, no tensors, or a norm that is not finite where that
            is refused.
    """
    state.require()
    refuse_inside_step("smp.clip_grad_norm_ is called", "gradients are complete when the step function has returned")
    if state.loss_scale is not None and state.loss_scale() != 1.0:
        raise SMPUnsupportedError(
            f"smp.clip_grad_norm_: the gradients carry the loss scale {state.loss_scale():g}: call "
            "optimizer.clip_master_grads(max_norm) of the smp.DistributedOptimizer"
        )
    for name, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        checks.positive("smp.clip_grad_norm_", name, value)
    refuse_infinite = checks.flag("smp.clip_grad_norm_", "error_if_nonfinite", error_if_nonfinite)
    listed = _listed(parameters)
    norm = norms.global_norm(listed, float(norm_type))
    if refuse_infinite and not math.isfinite(norm):
        raise SMPValueError(
            f"smp.clip_grad_norm_: the norm of order {norm_type} is {norm}: find what made a gradient infinite or not "
            "a number, or pass error_if_nonfinite=False"
        )
    grads = [sharding.local_shard(one.grad).detach() for one in listed if one.grad is not None]
    norms.scale_down(grads, float(max_norm), norm)
    return torch.tensor(norm, dtype=torch.float32, device=state.server.settings.device)


def _listed(parameters: Any) -> list[torch.Tensor]:
    found = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    found = list(found) if isinstance(found, collections.abc.Iterable) and not isinstance(found, str) else [found]
    for one in found:
        if not isinstance(one, torch.Tensor):
            checks.refuse("smp.clip_grad_norm_", "one of parameters", one, "a tensor, as of model.parameters()")
    return found
