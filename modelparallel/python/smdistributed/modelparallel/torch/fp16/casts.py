"""The edge of a half precision model: what comes in becomes half precision, what goes out float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..containers import mapped

_HALF = (torch.float16, torch.bfloat16)


def cast_at_root(module: nn.Module) -> None:
    """Makes a model whose parameters are half precision take float tensors of any size and return float32.

    So losses are computed in float32 from its outputs. Without such parameters nothing changes.
    """
    half = next((one.dtype for one in module.parameters() if one.dtype in _HALF), None)
    if half is None:
        return

    def before(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(mapped(lambda one: _to(one, half), list(args))), mapped(lambda one: _to(one, half), dict(kwargs))

    def after(_module: nn.Module, _args: Any, output: Any) -> Any:
        return mapped(lambda one: one.float() if isinstance(one, torch.Tensor) and one.dtype in _HALF else one, output)

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)


def _to(value: Any, dtype: torch.dtype) -> Any:
    floating = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.float64)
    return value.to(dtype) if floating else value
