"""What the optimizers with apex's arguments share: their checks, zero_grad, and the loop over gradients."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import checks
from ..exceptions import SMPUnsupportedError


def checked(kind: str, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> dict[str, Any]:
    """The options that all of them have; raises SMPValueError for a wrong one."""
    for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
        checks.not_negative(kind, name, value)
    pair = isinstance(betas, (tuple, list)) and len(betas) == 2
    if not pair or not all(isinstance(one, (int, float)) and 0 <= one < 1 for one in betas):
        checks.refuse(kind, "betas", betas, "two numbers from 0 to below 1")
    return {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}


class ClearsGradients:
    """zero_grad with a default of the optimizer's own."""

    _set_grad_none: bool

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients; as set_grad_none says, unless said here."""
        super().zero_grad(self._set_grad_none if set_to_none is None else set_to_none)  # type: ignore[misc]


class GradientLoop(ClearsGradients, torch.optim.Optimizer):
    """Updates parameters one by one.

    params, options: of torch.optim.Optimizer. A subclass has `update`. Raises SMPUnsupportedError for amsgrad.
    """

    def __init__(self, params: Any, options: dict[str, Any], amsgrad: bool, set_grad_none: bool) -> None:
        kind = type(self).__name__
        if checks.flag(kind, "amsgrad", amsgrad):
            raise SMPUnsupportedError(f"{kind} has no AMSGrad variant: leave amsgrad out")
        self._set_grad_none = checks.flag(kind, "set_grad_none", set_grad_none)
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients; all ranks of a replica call it. Returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        factor = self.gradient_factors()
        for group in self.param_groups:
            scale = factor(group)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad if scale == 1.0 else parameter.grad * scale, group)
        return loss

    def gradient_factors(self) -> Callable[[dict[str, Any]], float]:
        """What the gradients of a group are multiplied by in this step; nothing by default."""
        return lambda _group: 1.0

    def update(self, parameter: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        """Change one parameter, and its state."""
        raise NotImplementedError
