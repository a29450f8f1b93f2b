"""Keeps inputs of checkpointed modules on the host between the forward and the backward pass (offload_activations).

Copies run on streams of their own: out as soon as the forward pass has made the tensor, back
`activation_loading_horizon` tensors ahead of the backward pass. A tensor that is on the host already stays as it is: on
a CPU there is nothing to move.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from typing import Any, ContextManager

import torch

from ..server.tasks import current
from ..state import state

logger = logging.getLogger(__name__)
_said: set[str] = set()
_streams: dict[torch.device, tuple[Any, Any]] = {}
# The tensor offloaded last, by micro-batch: its backward pass meets them in the reverse order of its forward pass.
_last: weakref.WeakValueDictionary[Any, Offloaded] = weakref.WeakValueDictionary()


class Offloaded:
    """One tensor on the host: `host` (pinned where the device is a GPU), and, once it is on its way back, `back`."""

    def __init__(self, tensor: torch.Tensor, before: Offloaded | None) -> None:
        self.device = tensor.device
        self.before = weakref.ref(before) if before is not None else None
        self.back: torch.Tensor | None = None
        out, _ = streams(self.device)
        self.host = torch.empty(
            tensor.shape, dtype=tensor.dtype, layout=tensor.layout, device="cpu", pin_memory=out is not None
        )
        self.copied: Any = None
        if out is None:
            self.host.copy_(tensor)
            return
        out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(out):
            self.host.copy_(tensor, non_blocking=True)
            self.copied = out.record_event()
        # The allocator must not hand the memory on before the copy out of it has ended.
        tensor.record_stream(out)

    def start_loading(self) -> None:
        """Begin the copy back to the device; a second call does nothing."""
        if self.back is not None:
            return
        _, into = streams(self.device)
        if into is None:
            self.back = self.host.to(self.device)
            return
        with torch.cuda.stream(into):
            into.wait_event(self.copied)
            self.back = self.host.to(self.device, non_blocking=True)

    def load(self, horizon: int) -> torch.Tensor:
        """The tensor on its device, and the `horizon` ones offloaded before it on their way."""
        self.start_loading()
        earlier = self.before() if self.before is not None else None
        for _ in range(horizon):
            if earlier is None:
                break
            earlier.start_loading()
            earlier = earlier.before() if earlier.before is not None else None
        assert self.back is not None
        back, self.back = self.back, None
        _, into = streams(self.device)
        if into is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(into)
            back.record_stream(current)
        return back


def streams(device: torch.device) -> tuple[Any, Any]:
    """The streams for copies from and to a device; None and None where it has no streams that we know."""
    if device.type != "cuda":
        return None, None
    if device not in _streams:
        new: Any = torch.cuda.Stream  # untyped in torch
        _streams[device] = (new(device), new(device))
    return _streams[device]


def on_host(tensor: torch.Tensor) -> bool:
    """Whether there is nothing to move."""
    return tensor.device.type == "cpu"


def offload_inputs() -> ContextManager[Any]:
    """Within it, tensors that autograd saves go to the host; a null context unless this job offloads activations."""
    cfg = getattr(state, "cfg", None)
    if cfg is None or not cfg.offload_activations:
        return contextlib.nullcontext()
    if cfg.microbatches < 2:
        _say("offload_activations has no effect with 1 micro-batch: it pays where others run in between")
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_pack, _unpack)


def _pack(tensor: torch.Tensor) -> Any:
    if on_host(tensor):
        _say("offload_activations moves tensors to the host: on a CPU they are there already, nothing is moved")
        return tensor
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    task = current()
    key = task.label[0] if task is not None else None
    offloaded = Offloaded(tensor.detach(), _last.get(key))
    _last[key] = offloaded
    return offloaded


def _unpack(packed: Any) -> torch.Tensor:
    if isinstance(packed, Offloaded):
        return packed.load(state.cfg.activation_loading_horizon)
    tensor: torch.Tensor = packed
    return tensor


def _say(sentence: str) -> None:
    if sentence not in _said:
        _said.add(sentence)
        logger.warning("smp: %s", sentence)
