"""Compares a model with what it was: in a run on one rank, say, or in another release."""

from __future__ import annotations

from typing import Any

import torch

import smdistributed.modelparallel.torch as smp


def dump_model(model: Any, path: str) -> None:
    """Writes the whole state of a module, or of a DistributedModel (then all ranks call it), to a file."""
    whole = {name: _whole(value) for name, value in model.state_dict().items()}
    if not smp.is_initialized() or smp.rank() == 0:
        torch.save(whole, path)


def verify(model: Any, path: str, rtol: float = 1e-5, atol: float = 1e-8) -> None:
    """Raises AssertionError, naming all that differ, unless the model's state is close to that in the file.

    For a DistributedModel all ranks call it.
    """
    expected = torch.load(path, map_location="cpu")
    found = {name: _whole(value) for name, value in model.state_dict().items()}
    wrong = [name for name in expected if name not in found] + [name for name in found if name not in expected]
    for name in expected:
        if name in found and isinstance(expected[name], torch.Tensor):
            alike = found[name].shape == expected[name].shape
            if not (alike and torch.allclose(found[name].double(), expected[name].double(), rtol=rtol, atol=atol)):
                wrong.append(name)
    assert not wrong, f"the model differs from {path} in {', '.join(wrong)}"


def _whole(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value
