"""`smp.amp.GradScaler`: torch's gradient scaler, agreed over the ranks of a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Iterable

import torch
import torch.distributed as dist

from . import checks, comm, sharding
from .state import state
from .topology import CommGroup

if hasattr(torch.amp, "GradScaler"):
    _Scaler: Any = torch.amp.GradScaler
else:  # torch before 2.3
    _Scaler = torch.cuda.amp.GradScaler


class GradScaler(_Scaler):  # type: ignore[misc]
    """torch.cuda.amp.GradScaler for a distributed model, with its arguments.

    `scale(loss)` belongs inside the step function, `step(optimizer)` and `update()` after it, on every rank. A gradient
    that is not finite on one rank makes all ranks of the replica leave the step out.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        where = "smp.amp.GradScaler"
        checks.positive(where, "init_scale", init_scale)
        if checks.positive(where, "growth_factor", growth_factor) <= 1:
            checks.refuse(where, "growth_factor", growth_factor, "a number above 1")
        if checks.positive(where, "backoff_factor", backoff_factor) >= 1:
            checks.refuse(where, "backoff_factor", backoff_factor, "a number between 0 and 1")
        checks.whole(where, "growth_interval", growth_interval, least=1)
        checks.flag(where, "enabled", enabled)
        arguments: dict[str, Any] = {
            "init_scale": init_scale,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "growth_interval": growth_interval,
            "enabled": enabled,
        }
        if hasattr(torch.amp, "GradScaler"):
            arguments["device"] = "cuda" if torch.cuda.is_available() else "cpu"
        super().__init__(**arguments)

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        state.require()
        # The model's gradients, whole: of a sharded state the optimizer has a part of them only.
        whole: Iterable[Any] = getattr(optimizer, "model_parameters", lambda: _parameters(optimizer))()
        local = [_local(sharding.current_parameter(one)) for one in whole]
        stand_in = SimpleNamespace(param_groups=[{"params": local}])
        found: dict[torch.device, torch.Tensor] = super()._unscale_grads_(stand_in, inv_scale, found_inf, allow_fp16)
        # A rank without any gradient must take part in the decision as well.
        found = found or {found_inf.device: found_inf.clone()}
        for flag in found.values():
            with comm.reaching("agreeing on gradients that are not finite"):
                dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=state.groups.process[_deciding()])
        return found


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _local(parameter: torch.nn.Parameter) -> torch.Tensor:
    """A plain tensor that has this rank's shard of the parameter's gradient; the parameter itself if it is whole."""
    if not sharding.is_sharded(parameter):
        return parameter
    found = sharding.local_shard(parameter).detach()
    found.grad = None if parameter.grad is None else sharding.local_shard(parameter.grad)
    return found


def _deciding() -> CommGroup:
    """Whose gradients count: those of one replica, as replicas have the same; all, if each has a shard only."""
    return CommGroup.WORLD if state.cfg.sharded_data_parallel_degree > 1 else CommGroup.MP_GROUP
