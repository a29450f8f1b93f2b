"""What smp.DistributedModel tells about tensor parallelism; a part of that class."""

from __future__ import annotations

from typing import Iterator

from torch import Tensor, nn

from .shards import is_distributed, is_scaled_batch


class TensorParallelQueries:
    """For a class whose `module` is the user's model."""

    module: nn.Module

    def distributed_modules(self) -> Iterator[nn.Module]:
        """The modules of smp.nn in the model, outermost ones only."""
        yield from _outermost(self.module)

    def is_distributed_parameter(self, param: Tensor) -> bool:
        """Whether this rank has a slice of the parameter."""
        return is_distributed(param)

    def is_distributed_buffer(self, buf: Tensor) -> bool:
        """Whether this rank has a slice of the buffer; no module of smp.nn has such."""
        return is_distributed(buf)

    def is_scaled_batch_parameter(self, param: Tensor) -> bool:
        """Whether the parameter is applied to the samples of all ranks of TP_GROUP."""
        return is_scaled_batch(param)

    def is_scaled_batch_buffer(self, buf: Tensor) -> bool:
        """Whether the buffer is used with the samples of all ranks of TP_GROUP."""
        return is_scaled_batch(buf)

    def default_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name, parameter) of those whose gradients are averaged over DP_GROUP."""
        return ((name, p) for name, p in self.module.named_parameters() if not is_distributed(p))

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name, parameter) of those whose gradients are averaged over RDP_GROUP."""
        return ((name, p) for name, p in self.module.named_parameters() if is_distributed(p))


def _outermost(module: nn.Module) -> Iterator[nn.Module]:
    from ..nn.module import DistributedModule

    if isinstance(module, DistributedModule):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)
