"""Turns a partial checkpoint of a job with sharded data parallelism into the state_dict of the plain model.

Runs in one process, without `smp.init()`: it reads what save_checkpoint wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .checkpoint import folder, names
from .checkpoint.full import merged
from .checkpoint.parts import parts_of
from .checkpoint.reading import read_object
from .exceptions import CheckpointError, SMPValueError

__all__ = ["get_full_state_dict_from_sharded_data_parallel_checkpoint"]

# What wrappers put before the names of the model's parameters.
_PREFIX = "module."


def get_full_state_dict_from_sharded_data_parallel_checkpoint(
    checkpoint_dir: str,
    dtype: torch.dtype | str | None = torch.float32,
    tag: str | None = None,
    remove_smp_prefix: bool = True,
) -> dict[str, torch.Tensor]:
    """The whole model in a partial checkpoint, on the CPU.

    checkpoint_dir: the path given to save_checkpoint. dtype: of floating point values, a torch.dtype or its name; None
    leaves them as they were saved. tag: which checkpoint; None for the newest. remove_smp_prefix: take the "module." of
    wrappers off the names.
    Raises CheckpointError for a checkpoint that is missing, incomplete, or cut by tensor parallelism.
    """
    path = Path(checkpoint_dir)
    name = folder.newest(path) if tag is None else tag
    if not name.endswith(names.PARTIAL):
        name += names.PARTIAL
    at = folder.existing(path, name)
    if at is None:
        raise CheckpointError(f"there is no checkpoint {path / name}")
    whole = _whole(at)
    wanted = _dtype(dtype)
    return {
        _plain(key) if remove_smp_prefix else key: value.to(wanted) if wanted and value.is_floating_point() else value
        for key, value in whole.items()
        if isinstance(value, torch.Tensor)
    }


def _whole(at: Path) -> dict[str, Any]:
    said = read_object(at / names.PARTITION, map_location="cpu", weights_only=True)
    if said["tensor_parallel_degree"] > 1:
        raise CheckpointError(
            f"{at} was saved with tensor_parallel_degree {said['tensor_parallel_degree']}: each file has slices of the "
            "parameters; save a full checkpoint (partial=False) in the job instead"
        )
    places = [names.Place(pp, 0, 0) for pp in range(said["pipeline_parallel_degree"])]
    files = [at / parts_of(place, sharded_optimizer=False).model for place in places]
    return merged([read_object(file, map_location="cpu", weights_only=True) for file in files])


def _plain(key: str) -> str:
    while key.startswith(_PREFIX):
        key = key[len(_PREFIX) :]
    return key


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    found = getattr(torch, dtype.replace("torch.", ""), None) if isinstance(dtype, str) else dtype
    if found is None and dtype is None:
        return None
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise SMPValueError(f"dtype is {dtype!r}: it must be a floating point dtype of torch, its name, or None")
    return found
