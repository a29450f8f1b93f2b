"""What each replica has for itself: its random number generators, and its buffers (running statistics, say).

Parameters are the same on all replicas and are saved once; buffers are made equal at the start only and then differ.
"""

from __future__ import annotations

from typing import Any

import torch

from . import rng


def capture(model: Any, kept: dict[str, Any]) -> dict[str, Any]:
    """The state of this replica; model: the DistributedModel, or None. kept: its local_state_dict."""
    buffers: dict[str, torch.Tensor] = {}
    if model is not None:
        buffers = {name: buffer for name, buffer in model.local_named_buffers() if name in kept}
    return {"rng": rng.capture(), "buffers": buffers}


def restore(model: Any, saved: dict[str, Any]) -> None:
    """Go on with it: now, and again in the first step, where parameters that have no values yet draw random numbers and
    replicas get the buffers of the first.
    """
    rng.restore(saved["rng"])
    late = any(one.device.type == "meta" for one in model.module.parameters())

    def in_first_step(_model: Any, _optimizer: Any) -> None:
        _restore_buffers(model, saved["buffers"])
        if late:
            rng.restore(saved["rng"])

    model.register_post_partition_hook(in_first_step)


def _restore_buffers(model: Any, buffers: dict[str, torch.Tensor]) -> None:
    for name, buffer in model.local_named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
