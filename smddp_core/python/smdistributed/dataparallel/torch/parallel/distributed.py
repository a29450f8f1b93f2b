"""``DistributedDataParallel`` with the arguments of releases 1.0 to 1.3 (deprecated since 1.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from smdistributed.dataparallel.torch import distributed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(TorchDistributedDataParallel):
    """torch's own, on the smddp back end. Initialises the process group if nobody has.

    Args:
        module: the model; its parameters and buffers become those of rank 0.
        device_ids: the one GPU of this rank. Ignored for a model on the CPU, where old scripts pass it too.
        output_device: as for torch.
        broadcast_buffers: copy rank 0's buffers to all before each forward pass.
        process_group: ranks to average over; default all.
        bucket_cap_mb: size of a gradient bucket in MiB; default torch's, 25.
        gradient_accumulation_steps: gradients are averaged over the ranks in every so-manieth backward pass only,
            and added up locally before. They are not divided by the number of steps.
        options: what else torch's class takes.

    Raises:
        ValueError: ``gradient_accumulation_steps`` is less than one.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        broadcast_buffers: bool = True,
        process_group: distributed.Group = None,
        bucket_cap_mb: int | None = None,
        gradient_accumulation_steps: int = 1,
        **options: Any,
    ) -> None:
        if gradient_accumulation_steps < 1:
            raise ValueError(f"gradient_accumulation_steps={gradient_accumulation_steps}: expected at least 1")
        distributed.init_process_group()
        if bucket_cap_mb is not None:
            options["bucket_cap_mb"] = bucket_cap_mb
        if not broadcast_buffers:
            # Today's torch warns that the option is deprecated, whatever its value.
            options["broadcast_buffers"] = False
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            device_ids = output_device = None
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            process_group=distributed.torch_group(process_group),
            **options,
        )
        self._steps = gradient_accumulation_steps
        self._passes = 0

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward pass; decides whether the backward pass after it communicates."""
        forward: Any = super().forward
        # Evaluation has no backward pass, and inside no_sync() the script counts for itself.
        counts = self.training and torch.is_grad_enabled() and self.require_backward_grad_sync
        if self._steps == 1 or not counts:
            return forward(*inputs, **kwargs)
        self._passes += 1
        if self._passes % self._steps == 0:
            return forward(*inputs, **kwargs)
        with self.no_sync():
            return forward(*inputs, **kwargs)
