"""NovoGrad: one second moment a parameter, not an element."""

from __future__ import annotations

from typing import Any

import torch

from .. import checks
from ..optimizer.norms import norm_of
from .base import GradientLoop, checked


class FusedNovoGrad(GradientLoop):
    """NovoGrad (Ginsburg et al., arXiv 1905.11286), with the arguments of apex's FusedNovoGrad.

    norm_type: 2, or infinity. The second moment is kept as a norm. init_zero: it begins at 0, else at the first
    gradient's norm. reg_inside_moment: weight decay joins the first moment, else the step.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: float = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        kind = type(self).__name__
        common = checked(kind, lr, betas, eps, weight_decay)
        flags = {
            "bias_correction": bias_correction,
            "grad_averaging": grad_averaging,
            "reg_inside_moment": reg_inside_moment,
            "init_zero": init_zero,
        }
        for name, value in flags.items():
            checks.flag(kind, name, value)
        if isinstance(norm_type, bool) or norm_type not in (0, 2, float("inf")):
            checks.refuse(kind, "norm_type", norm_type, "2, or infinity (0 stands for it in apex)")
        super().__init__(params, {**common, **flags, "norm_type": norm_type or float("inf")}, amsgrad, set_grad_none)

    def update(self, parameter: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        """Take one step of NovoGrad."""
        one = self.state[parameter]
        beta1, beta2 = group["betas"]
        norm = parameter.new_tensor(norm_of(grad, parameter, group["norm_type"]))
        if not one:
            first = torch.zeros_like(norm) if group["init_zero"] else norm.clone()
            one.update(step=0, exp_avg=torch.zeros_like(parameter), norm=first)
        one["step"] += 1
        one["norm"] = _blended(one["norm"], norm, beta2, group["norm_type"])
        correct1, correct2 = 1.0, 1.0
        if group["bias_correction"]:
            correct1, correct2 = 1 - beta1 ** one["step"], (1 - beta2 ** one["step"]) ** 0.5
        share = 1 - beta1 if group["grad_averaging"] else 1.0
        scaled = grad / (one["norm"] / correct2 + group["eps"])
        inside = group["weight_decay"] and group["reg_inside_moment"]
        if inside:
            scaled = scaled.add(parameter, alpha=group["weight_decay"])
        one["exp_avg"].mul_(beta1).add_(scaled, alpha=share)
        update = one["exp_avg"] / correct1
        if group["weight_decay"] and not inside:
            update = update.add(parameter, alpha=group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"])


def _blended(kept: torch.Tensor, norm: torch.Tensor, beta: float, norm_type: float) -> torch.Tensor:
    """The moving average of the norm: of squares for the 2-norm, of the norm itself for the largest element."""
    if norm_type == 2:
        return (kept.pow(2) * beta + norm.pow(2) * (1 - beta)).sqrt()
    return kept * beta + norm * (1 - beta)
