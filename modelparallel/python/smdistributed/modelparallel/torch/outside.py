"""Backward passes outside of step functions: a rank that has the whole model needs no step (statement 29).

As torch's DistributedDataParallel does it, gradients are complete, averaged over replicas, when the backward returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .partition.watch import tensors_in

if TYPE_CHECKING:
    from .model import DistributedModel


class OutsideSteps:
    """Makes of each backward pass that reaches the model's outputs what a step with one micro-batch is."""

    def __init__(self, model: DistributedModel) -> None:
        self._model = model
        self._under_way = False

    def watch(self, output: Any) -> None:
        """Take note of what the model has returned outside of a step."""
        self._under_way = False  # a backward pass that raised never came to its end
        if torch.is_grad_enabled():
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._begin)  # type: ignore[no-untyped-call]

    def _begin(self, _gradient: torch.Tensor) -> None:
        """Called by autograd before the gradient of any parameter grows."""
        if not self._under_way:
            self._under_way = True
            self._model.begin_backward()
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._under_way = False
        self._model.end_step()
