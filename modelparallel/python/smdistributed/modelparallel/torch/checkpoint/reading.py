"""Reads a file of a checkpoint, and says in one sentence why it cannot."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from ..exceptions import CheckpointError


def read_object(path: Path, **torch_load: Any) -> Any:
    """torch.load(path, **torch_load). Raises CheckpointError, with the file and the cause, when it cannot be read."""
    try:
        return torch.load(path, **torch_load)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        if "weights_only" not in str(error).lower():
            raise CheckpointError(f"{path} is no file of torch.save, or is damaged: {_first(error)}") from error
        raise CheckpointError(
            f"{path} holds more than tensors and plain values, and torch.load refuses to run what it would need "
            f"({_refused(error)}): pass weights_only=False if you trust the file, or allow the class with "
            "torch.serialization.add_safe_globals"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path} is no file of torch.save, or is damaged: {_first(error)}") from error


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _refused(error: BaseException) -> str:
    """The part of torch's page of advice that names what it refused."""
    for line in str(error).splitlines():
        if "GLOBAL" in line or "Unsupported" in line:
            return line.strip().split("was not an allowed")[0].replace("WeightsUnpickler error: ", "").strip()
    return _first(error)
