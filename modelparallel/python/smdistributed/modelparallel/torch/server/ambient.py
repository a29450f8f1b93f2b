"""The thread-local state of torch that a forward pass depends on, carried to where a part of it runs.

Gradient mode, inference mode and autocast are kept by torch per thread. A micro-batch runs in a thread of its own and a
module call may run on another rank: both must see what the user's thread had when it called the step function.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, NamedTuple

import torch


class Ambient(NamedTuple):
    """What `capture` found; picklable. `autocast` has one (device type, enabled, dtype) for each device type."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]


_DEVICE_TYPES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _autocast_state(device_type: str) -> tuple[str, bool, torch.dtype]:
    old: Any = torch  # releases before 2.4 have one function a device type
    if device_type == "cpu":
        enabled = torch.is_autocast_enabled("cpu") if _BY_DEVICE_TYPE else old.is_autocast_cpu_enabled()
        dtype = torch.get_autocast_dtype("cpu") if _BY_DEVICE_TYPE else old.get_autocast_cpu_dtype()
    else:
        enabled = torch.is_autocast_enabled("cuda") if _BY_DEVICE_TYPE else old.is_autocast_enabled()
        dtype = torch.get_autocast_dtype("cuda") if _BY_DEVICE_TYPE else old.get_autocast_gpu_dtype()
    return device_type, enabled, dtype


_BY_DEVICE_TYPE = hasattr(torch, "get_autocast_dtype")


def capture() -> Ambient:
    """Return the state of the calling thread."""
    autocast = tuple(state for state in map(_autocast_state, _DEVICE_TYPES) if state[1])
    return Ambient(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)


def applied(ambient: Ambient) -> contextlib.AbstractContextManager[Any]:
    """Give the calling thread this state for the length of the block."""
    if ambient.inference or ambient.autocast:
        return _all_applied(ambient)
    return torch.set_grad_enabled(ambient.grad)


@contextlib.contextmanager
def _all_applied(ambient: Ambient) -> Iterator[None]:
    """Autocast's cache of weights is off: it is a thread's own, and several threads have micro-batches under way."""
    with contextlib.ExitStack() as stack:
        if ambient.inference:
            stack.enter_context(torch.inference_mode())
        for device_type, enabled, dtype in ambient.autocast:
            stack.enter_context(torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=False))
        stack.enter_context(torch.set_grad_enabled(ambient.grad))
        yield
