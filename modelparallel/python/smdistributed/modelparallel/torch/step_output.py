"""What a step function returns: for each tensor its values of all micro-batches."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch

from . import checks
from .containers import items_of, mapped, rebuilt
from .exceptions import SMPValueError


class StepOutput:
    """The values that one returned tensor had in each micro-batch.

    Attributes:
        outputs: the tensors, by micro-batch.

    Raises:
        SMPValueError: made of anything but a list of tensors.
    """

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        right = isinstance(outputs, (list, tuple)) and all(isinstance(one, torch.Tensor) for one in outputs)
        if not right or not outputs:
            checks.refuse("smp.StepOutput", "outputs", outputs, "a list of tensors, one for each micro-batch")
        self.outputs = list(outputs)

    def __repr__(self) -> str:
        """Shapes rather than values: the tensors may be large."""
        return f"StepOutput({len(self.outputs)} micro-batches of {tuple(self.outputs[0].shape)})"

    def reduce_mean(self) -> torch.Tensor:
        """Return the mean over micro-batches; same shape and dtype as one of them.

        Raises:
            SMPValueError: their shapes differ.
        """
        return self._stacked("reduce_mean").mean(0)

    def reduce_sum(self) -> torch.Tensor:
        """Return the sum over micro-batches; same shape as one of them.

        Raises:
            SMPValueError: their shapes differ.
        """
        return self._stacked("reduce_sum").sum(0)

    def concat(self) -> torch.Tensor:
        """Return the micro-batches joined along dimension 0: in the order of the batch. Scalars become one of [M].

        Raises:
            SMPValueError: their shapes differ in another dimension.
        """
        if self.outputs[0].dim() == 0:
            return self._stacked("concat")
        try:
            return torch.cat(self.outputs)
        except RuntimeError as error:
            raise SMPValueError(f"StepOutput.concat: {self._shapes()}: they must agree beyond dimension 0") from error

    def stack(self) -> torch.Tensor:
        """Return the micro-batches along a new dimension 0.

        Raises:
            SMPValueError: their shapes differ.
        """
        return self._stacked("stack")

    def detach(self) -> StepOutput:
        """Return the same values without a graph."""
        return StepOutput([output.detach() for output in self.outputs])

    def _stacked(self, caller: str) -> torch.Tensor:
        if len({output.shape for output in self.outputs}) > 1:
            raise SMPValueError(
                f"StepOutput.{caller}: {self._shapes()}: they must be equal; see .outputs, or .concat()"
            )
        return torch.stack(self.outputs)

    def _shapes(self) -> str:
        return f"the micro-batches have the shapes {[list(output.shape) for output in self.outputs]}"


def assemble(results: list[Any], detach: bool) -> Any:
    """Return what the bodies of a step returned as one: tensors as StepOutput, anything else as a list by micro-batch.

    Args:
        results: what each body returned: of one structure, which is kept; dataclasses are part of it.
        detach: give the tensors without a graph.
    """
    first = results[0]
    if all(isinstance(result, torch.Tensor) for result in results):
        return StepOutput([result.detach() if detach else result for result in results])
    columns = [_columns(result) for result in results]
    if any(type(result) is not type(first) for result in results) or any(
        one is None or one.keys() != (columns[0] or {}).keys() for one in columns
    ):
        return [mapped(_detached, result) if detach else result for result in results]
    joined = {key: assemble([one[key] for one in columns if one is not None], detach) for key in columns[0] or {}}
    if items_of(first) is not None:
        return rebuilt(first, joined.values())
    found = copy.copy(first)
    for name, value in joined.items():
        object.__setattr__(found, name, value)  # frozen ones too
    return found


def _columns(result: Any) -> dict[Any, Any] | None:
    """What a body returned, by key, index or field; None for what has no such, or no order."""
    if isinstance(result, (set, frozenset)):
        return None
    items = items_of(result)
    if items is None and dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {one.name: getattr(result, one.name) for one in dataclasses.fields(result) if hasattr(result, one.name)}
    return None if items is None else dict(items)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
