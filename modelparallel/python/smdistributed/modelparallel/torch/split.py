"""Cut the arguments of a step function into micro-batches."""

from __future__ import annotations

from typing import Any, Mapping

import torch
from torch.utils.data import DataLoader

from .containers import items_of, rebuilt
from .exceptions import SMPUnsupportedError, SMPValueError


def split(value: Any, parts: int, axis: int, what: str) -> list[Any]:
    """Return `value` once for each micro-batch.

    A tensor is cut along `axis`, also inside lists, tuples, sets and mappings; an object with a method
    `smp_slice(num_mb, mb, axis)` cuts itself; anything else, and a tensor without dimensions, goes to all as it is.

    Args:
        value: one argument of the step function.
        parts: number of micro-batches.
        axis: the batch dimension.
        what: names the argument in errors.

    Raises:
        SMPValueError: a tensor cannot be cut into `parts` equal parts.
        SMPUnsupportedError: a DataLoader: it is no batch.
    """
    if isinstance(value, torch.Tensor):
        return _split_tensor(value, parts, axis, what)
    if hasattr(value, "smp_slice"):
        return [value.smp_slice(parts, index, axis) for index in range(parts)]
    if isinstance(value, DataLoader):
        raise SMPUnsupportedError(
            f"{what} is a DataLoader: iterate over it outside, and pass its batches to the step function"
        )
    items = items_of(value)
    if items is None:
        return [value] * parts
    columns = [split(item, parts, axis, f"{what}[{key!r}]") for key, item in items]
    return [rebuilt(value, [column[index] for column in columns]) for index in range(parts)]


def _split_tensor(tensor: torch.Tensor, parts: int, axis: int, what: str) -> list[torch.Tensor]:
    if tensor.dim() == 0:
        return [tensor] * parts
    if not -tensor.dim() <= axis < tensor.dim():
        raise SMPValueError(f"{what} has the shape {list(tensor.shape)}: it cannot be split along axis {axis}")
    size = tensor.shape[axis]
    if size % parts or size == 0:
        raise SMPValueError(
            f"{what} has the shape {list(tensor.shape)}: {size} along axis {axis} does not divide into "
            f"{parts} microbatches; use drop_last=True in the DataLoader or skip the batch, or name it in "
            "non_split_inputs"
        )
    return list(tensor.chunk(parts, axis))


def split_arguments(
    arguments: Mapping[str, Any], parts: int, keep: frozenset[str], axes: Mapping[str, int], function: str
) -> list[dict[str, Any]]:
    """Return the arguments by name for each micro-batch.

    Args:
        arguments: by name.
        parts: number of micro-batches.
        keep: names whose values go to all micro-batches as they are.
        axes: names whose batch dimension is not 0.
        function: the step function's name, for errors.

    Raises:
        SMPValueError, SMPUnsupportedError: see `split`.
    """
    columns = {
        name: [value] * parts
        if name in keep or isinstance(value, torch.nn.Module)
        else split(value, parts, axes.get(name, 0), f"argument {name!r} of step function {function!r}")
        for name, value in arguments.items()
    }
    return [{name: column[index] for name, column in columns.items()} for index in range(parts)]
