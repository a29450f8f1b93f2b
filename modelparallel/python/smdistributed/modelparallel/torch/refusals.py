"""What cannot be wrapped or called, each refused with one sentence that says what to use instead."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn

from . import checks
from .exceptions import SMPUnsupportedError
from .server.tasks import current

_WRAPPERS = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "smp.DistributedModel averages gradients "
    "itself (ddp: true)",
    "torch.nn.parallel.data_parallel.DataParallel": "start one process a device; smp.DistributedModel averages",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "set sharded_data_parallel_degree",
    "smdistributed.dataparallel.torch.parallel.distributed.DistributedDataParallel": "smp.DistributedModel averages "
    "gradients itself (ddp: true)",
}
_APEX = {
    "apex.normalization": "smp.nn.FusedLayerNorm",
    "apex.parallel": "smp.DistributedModel (ddp: true)",
    "apex.optimizers": "smp.optimizers",
    "apex.contrib": "smp.optimizers, or the modules of smp.nn",
}


def check_model(module: Any) -> None:
    """Raise for what smp.DistributedModel cannot wrap.

    Raises:
        SMPValueError: not an nn.Module.
        SMPUnsupportedError: it is, or holds, a wrapper of another library or a TorchScript module.
    """
    if not isinstance(module, nn.Module):
        checks.refuse("smp.DistributedModel", "module", module, "an nn.Module")
    for name, child in module.named_modules():
        kind = type(child)
        full = f"{kind.__module__}.{kind.__qualname__}"
        where = f"module {name!r}" if name else "the model"
        if full in _WRAPPERS:
            raise SMPUnsupportedError(f"{where} is a {full}: unwrap it (.module); {_WRAPPERS[full]}")
        if isinstance(child, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            raise SMPUnsupportedError(
                f"{where} is a TorchScript module: wrap the plain module it was made of, or "
                "torch.compile its leaf modules"
            )
        for prefix, instead in _APEX.items():
            if kind.__module__.startswith(prefix):
                raise SMPUnsupportedError(f"{where} is of apex ({full}): use {instead}")


_plain_backward: Callable[..., None] = torch.Tensor.backward


def _guarded_backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    if current() is not None:
        raise SMPUnsupportedError("tensor.backward() inside a step: use model.backward(tensor)")
    _plain_backward(self, *args, **kwargs)


def refuse_inside_step(what: str, why: str) -> None:
    """Raise SMPUnsupportedError in the body of a step function, for what only makes sense after it."""
    if current() is not None:
        raise SMPUnsupportedError(f"{what} inside a step: {why}; call it outside of the step function")


def guard_backward() -> None:
    """Let `loss.backward()` inside a step say what to write instead: it would skip the pipeline and the scaling."""
    torch.Tensor.backward = _guarded_backward  # type: ignore[method-assign]
