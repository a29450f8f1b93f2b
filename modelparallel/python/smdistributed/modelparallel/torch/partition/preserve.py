"""Leave no trace of a run: what it draws from random generators and writes into buffers is put back after it."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Iterator

import torch
from torch import nn


@contextlib.contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """Restores on leaving: the generators of torch (CPU and used GPUs), Python and NumPy, and every buffer of module.

    Buffers keep their identity as well as their values: one that the run replaced by another tensor is put back.
    """
    buffers = [(owner, dict(owner._buffers)) for owner in module.modules() if owner._buffers]
    live = [buffer for _, held in buffers for buffer in held.values() if buffer is not None and not buffer.is_meta]
    values = [(buffer, buffer.detach().clone()) for buffer in live]
    python_state, numpy_state = random.getstate(), _numpy_state()
    devices = list(range(torch.cuda.device_count())) if _cuda_used() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy_state is not None:
            sys.modules["numpy"].random.set_state(numpy_state)
        for owner, held in buffers:
            owner._buffers.clear()
            owner._buffers.update(held)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)


def _cuda_used() -> bool:
    return torch.cuda.is_initialized()  # type: ignore[no-untyped-call,no-any-return]


def _numpy_state() -> Any:
    # Imported by nothing here: a run can only have used it if the script did import it.
    numpy = sys.modules.get("numpy")
    return numpy.random.get_state() if numpy is not None else None
