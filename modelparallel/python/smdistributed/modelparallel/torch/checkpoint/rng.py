"""The random number generators of a process, for a resumed run to go on with the numbers that would have come."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """The states of torch's generators (CPU and current GPU), Python's and, if it is in use, NumPy's.

    Plain values and tensors only, so that they can be loaded with weights_only.
    """
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = (kind, torch.tensor(keys.astype("int64")), *rest)
    return states


def restore(states: dict[str, Any]) -> None:
    """Go on with these states."""
    torch.set_rng_state(states["torch"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if "numpy" in states and "numpy" in sys.modules:
        kind, keys, *rest = states["numpy"]
        sys.modules["numpy"].random.set_state((kind, keys.numpy().astype("uint32"), *rest))
