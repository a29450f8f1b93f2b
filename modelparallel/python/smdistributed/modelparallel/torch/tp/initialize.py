"""Weights of distributed modules: the full weight is drawn on every rank from one random stream, and each keeps its
slice.

So a model's weights depend on the seed alone, not on tensor_parallel_degree: under one seed a distributed module
holds the weights that its plain counterpart would. Scripts that seed each rank differently get those of
tensor-parallel rank 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from . import world

_sharing = False


@contextlib.contextmanager
def one_stream() -> Iterator[None]:
    """Within, torch's CPU random stream is that of tensor-parallel rank 0; all ranks of the group must enter.

    A rank whose stream was another one has it back afterwards.
    """
    global _sharing
    if _sharing or world.tp_size() == 1:
        yield
        return
    own = torch.get_rng_state()
    shared = own.clone()
    group = world.control_group()
    dist.broadcast(shared, dist.get_global_rank(group, 0), group=group)
    torch.set_rng_state(shared)
    _sharing = True
    try:
        yield
    finally:
        _sharing = False
        if not torch.equal(own, shared):
            torch.set_rng_state(own)


def fill(parameter: Tensor, shape: Sequence[int], dim: int | None, draw: Callable[[Tensor], object]) -> None:
    """Fills a parameter with what `draw` writes to a CPU tensor of the full `shape`; it is this rank's slice of `dim`.

    dim None: the parameter is replicated. A parameter on the meta device is left for whoever materialises it.
    """
    if parameter.is_meta:
        return
    wide = parameter.dtype in (torch.float32, torch.float64)
    full = torch.empty(tuple(shape), dtype=parameter.dtype if wide else torch.float32, device="cpu")
    with torch.no_grad(), one_stream():
        draw(full)
        piece = full if dim is None else full.chunk(world.tp_size(), dim)[world.tp_rank()]
        parameter.copy_(piece)
