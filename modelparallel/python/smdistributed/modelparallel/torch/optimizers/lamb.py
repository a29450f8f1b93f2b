"""LAMB: Adam whose step is scaled, parameter by parameter, to the parameter's norm."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import checks
from ..optimizer.norms import global_norm, norm_of
from .base import GradientLoop, checked


class FusedLAMB(GradientLoop):
    """LAMB (You et al., arXiv 1904.00962), with the arguments of apex's FusedLAMB.

    Gradients are first scaled down to max_grad_norm, the norm being that over all partitions of the model: all ranks
    call step. grad_averaging: the first moment takes (1 - beta1) of the gradient. use_nvlamb: scale parameters without
    weight decay too. adam_w_mode: weight decay joins the step, else the gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        common = checked(type(self).__name__, lr, betas, eps, weight_decay)
        checks.not_negative(type(self).__name__, "max_grad_norm", max_grad_norm)
        own = {
            "bias_correction": bias_correction,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
            "adam_w_mode": adam_w_mode,
            "use_nvlamb": use_nvlamb,
        }
        for name, value in own.items():
            if name != "max_grad_norm":
                checks.flag(type(self).__name__, name, value)
        super().__init__(params, {**common, **own}, amsgrad, set_grad_none)

    def gradient_factors(self) -> Callable[[dict[str, Any]], float]:
        """Scales gradients of a larger norm, over all partitions, down to the group's max_grad_norm."""
        norm = global_norm(self._norm_parameters())
        return lambda group: group["max_grad_norm"] / norm if 0 < group["max_grad_norm"] < norm else 1.0

    def _norm_parameters(self) -> list[torch.Tensor]:
        # A distributed optimizer may hold a replica's share only: the norm is of all.
        if hasattr(self, "gradients_of_replica"):
            found: list[torch.Tensor] = self.gradients_of_replica()
            return found
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def update(self, parameter: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        """Take one step of LAMB."""
        one = self.state[parameter]
        if not one:
            one.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        one["step"] += 1
        beta1, beta2 = group["betas"]
        decay = group["weight_decay"]
        if decay and not group["adam_w_mode"]:
            grad = grad.add(parameter, alpha=decay)
        one["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1 if group["grad_averaging"] else 1.0)
        one["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correct1, correct2 = 1.0, 1.0
        if group["bias_correction"]:
            correct1, correct2 = 1 - beta1 ** one["step"], 1 - beta2 ** one["step"]
        update = (one["exp_avg"] / correct1) / ((one["exp_avg_sq"] / correct2).sqrt() + group["eps"])
        if decay and group["adam_w_mode"]:
            update.add_(parameter, alpha=decay)
        ratio = 1.0
        if decay or group["use_nvlamb"]:
            weight, length = norm_of(parameter, parameter), norm_of(update, parameter)
            ratio = weight / length if weight > 0 and length > 0 else 1.0
        parameter.add_(update, alpha=-group["lr"] * ratio)
