"""`smp.model_creation`: one context for all that concerns how a model is made."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, Iterator

import torch

from .. import checks
from ..state import state
from .delayed_init import delay_param_initialization

# Given by published clients for a wrapper that has no counterpart here; parameters are as the model makes them anyway.
_WITHOUT_EFFECT = ("zero_init",)


@contextlib.contextmanager
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tensor_parallel_config: Any
) -> Iterator[None]:
    """Create the model inside.

    tensor_parallelism: supported modules are distributed, with tensor_parallel_config as smp.tensor_parallelism takes
    it. dtype: of parameters, buffers and other floating point tensors created without a dtype; None is torch's default.
    Initialisation is delayed if the configuration has delayed_parameter_initialization. Raises SMPValueError for a
    dtype that is no floating point type, NotInitializedError before smp.init().
    """
    cfg = state.require().cfg
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        checks.refuse("smp.model_creation", "dtype", dtype, "torch.float16, bfloat16 or float32")
    tensor_parallelism = checks.flag("smp.model_creation", "tensor_parallelism", tensor_parallelism)
    options = {key: value for key, value in tensor_parallel_config.items() if key not in _WITHOUT_EFFECT}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_default_dtype(dtype))
        if tensor_parallelism:
            tp = importlib.import_module("..tp", __package__)
            stack.enter_context(tp.tensor_parallelism(True, **options))
        stack.enter_context(delay_param_initialization(cfg.delayed_parameter_initialization))
        yield


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
