"""Adam with the arguments of apex's FusedAdam, on torch's own (which is fused on GPUs)."""

from __future__ import annotations

from typing import Any

import torch

from .. import checks
from ..exceptions import SMPUnsupportedError
from .base import ClearsGradients, checked


class FusedAdam(ClearsGradients, torch.optim.AdamW):
    """Adam (arXiv 1412.6980), with decoupled weight decay (arXiv 1711.05101) where adam_w_mode is true.

    set_grad_none: zero_grad frees gradients. Raises SMPUnsupportedError for bias_correction=False or amsgrad=True.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        kind = type(self).__name__
        checked(kind, lr, betas, eps, weight_decay)
        for name, value in {"adam_w_mode": adam_w_mode, "amsgrad": amsgrad, "bias_correction": bias_correction}.items():
            checks.flag(kind, name, value)
        if amsgrad or not bias_correction:
            wrong = "amsgrad=True" if amsgrad else "bias_correction=False"
            raise SMPUnsupportedError(f"FusedAdam does not know {wrong}: use torch.optim.AdamW, or leave it out")
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self._set_grad_none = checks.flag(kind, "set_grad_none", set_grad_none)
        for group in self.param_groups:
            if not adam_w_mode and weight_decay and "decoupled_weight_decay" not in group:
                raise SMPUnsupportedError("FusedAdam(adam_w_mode=False) needs torch 2.7: use torch.optim.Adam")
            # Where it does not decouple, torch's AdamW is torch's Adam.
            group["decoupled_weight_decay"] = adam_w_mode
