"""The optimizer of half precision models: float32 master weights, loss scaling, and steps left out on overflow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import nn

from .. import checks
from ..optimizer import norms
from ..refusals import refuse_inside_step
from ..state import state
from .loss_scale import LossScale

if TYPE_CHECKING:
    from ..optimizer.distributed import Partitioned

LOSS_SCALE = "loss_scaler"


class Fp16Optimizer(torch.optim.Optimizer):
    """Wraps the script's optimizer, which is `.optimizer` and updates float32 copies of the half precision parameters.

    overflow: the last gradients were not finite on some rank, so that step left the weights as they were.
    loss_scale: what losses are multiplied by now.
    """

    def __init__(self, optimizer: Partitioned, scale: LossScale) -> None:
        # Not super().__init__: the parameters, groups and state are those of the wrapped optimizer.
        self.optimizer = optimizer
        self.loss_scaler = scale
        self.overflow = False
        self._taken = False
        self._norm = self._clipped = 0.0
        state.loss_scale = lambda: self.loss_scale

    # What a torch Optimizer has is that of the wrapped one, so that schedulers work on either.

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the wrapped optimizer: its master weights and options."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the wrapped optimizer."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The options of the wrapped optimizer."""
        return self.optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"Fp16Optimizer({self.optimizer!r})"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)

    @property
    def loss_scale(self) -> float:
        """What losses are multiplied by."""
        return self.loss_scaler.scale

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether the scale adapts to overflows."""
        return self.loss_scaler.dynamic

    @property
    def fp32_from_fp16_groups(self) -> list[list[nn.Parameter]]:
        """The master weights of this rank, by parameter group."""
        masters = {id(part.parameter) for part in self.optimizer.parts() if part.master}
        return [[one for one in group["params"] if id(one) in masters] for group in self.param_groups]

    @property
    def _global_grad_norm(self) -> float:
        """The norm of the last gradients, over all partitions, without the loss scale."""
        return self._norm

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the scale; model.backward does this itself."""
        return loss * self.loss_scale

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients of the model and of the master weights."""
        self._taken = False
        self.optimizer.zero_grad(set_to_none)

    def update_master_grads(self) -> None:
        """Give the master weights the gradients of the model, without the loss scale; find out about overflow.

        All ranks of a replica call it, once for a step; `step` and `clip_master_grads` do it where it was not done.
        """
        if self._taken:
            return
        self._taken = True
        parts = self.optimizer.parts()
        norm = norms.global_norm(parts.owned())
        self.overflow = not math.isfinite(norm)
        self._norm = self._clipped = norm / self.loss_scale
        if not self.overflow:
            parts.take_gradients(1.0 / self.loss_scale)

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scale the gradients down to `max_norm`, if their norm over all partitions is larger.

        Returns the norm before, or -1 after an overflow. All ranks of a replica call it, between the step function and
        `step`.
        """
        for name, value in (("max_norm", max_norm), ("norm_type", norm_type)):
            checks.positive("optimizer.clip_master_grads", name, value)
        self.update_master_grads()
        if self.overflow:
            return -1.0
        norm = self._clipped
        if norm_type != 2.0:
            norm = norms.global_norm(self.optimizer.parts().owned(), norm_type) / self.loss_scale
        self.optimizer.parts().clip(max_norm, norm)
        if norm_type == 2.0:
            self._clipped = min(norm, max_norm)
        return norm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the model, unless a gradient was not finite; then only the loss scale changes.

        All ranks of a replica call it, with the gradients of a step complete.
        """
        refuse_inside_step("optimizer.step is called", "gradients are complete when the step function has returned")
        self.update_master_grads()
        limit = norms.step_clipping()
        if limit:
            self.clip_master_grads(limit)
        result = None
        if not self.overflow:
            result = self.optimizer.step(closure)
            self.optimizer.parts().give_values()
        self.loss_scaler.update(self.overflow)
        self._taken = False
        return result

    # -- state

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """Return this rank's part of the state, master weights and loss scale included, and `_smp_is_partial`: True.

        gather_if_shard: with shard_optimizer_state, make it whole from the replicas' pieces; all of them must call.
        """
        return {**self.optimizer.local_state_dict(gather_if_shard), LOSS_SCALE: self.loss_scaler.state_dict()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parameters, master weights and loss scale; all ranks of a replica must call it."""
        return {**self.optimizer.state_dict(), LOSS_SCALE: self.loss_scaler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any], gather_if_shard: bool = True) -> None:
        """Load what state_dict or local_state_dict gave, or the state of a plain optimizer.

        Before the model is partitioned, weights and moments are loaded when it is.
        """
        if LOSS_SCALE in state_dict:
            self.loss_scaler.load_state_dict(state_dict[LOSS_SCALE])
        own = {name: value for name, value in state_dict.items() if name != LOSS_SCALE}
        self.optimizer.load_state_dict(own, gather_if_shard)

    def local_fp16_state_dict(self) -> dict[str, Any]:
        """Return what is not of any parameter: the loss scale."""
        return {LOSS_SCALE: self.loss_scaler.state_dict()}

    def load_local_fp16_state_dict(self, saved: dict[str, Any]) -> None:
        """Load what local_fp16_state_dict gave."""
        self.loss_scaler.load_state_dict(saved[LOSS_SCALE])

    def save_optimizer_backcompat(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """Return local_state_dict, under the name that scripts of release 1.10 call."""
        return self.local_state_dict(gather_if_shard)

    def load_optimizer_backcompat(self, state_dict: dict[str, Any], gather_if_shard: bool = True) -> None:
        """Load what save_optimizer_backcompat gave."""
        self.load_state_dict(state_dict, gather_if_shard)
