"""One checkpointed call: keep what goes in and what comes out, recompute the rest when the backward pass asks."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ..server.tasks import current
from .offload import offload_inputs


def tracing() -> bool:
    """Whether the first step is being traced: the trace measures the model as it is, without recomputation."""
    task = current()
    return task is not None and task.tracing


def recomputed(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    preserve_rng_state: bool,
    modules: Sequence[nn.Module],
) -> Any:
    """function(*args, **kwargs), its activations recomputed in the backward pass.

    Arguments may be any structure that torch's pytree knows; the tensors in it are what is kept (on the host where
    `offload_activations` says so). modules: what function runs; their buffers are as one pass leaves them, running
    statistics are not updated a second time. Outside autograd and while tracing it is a plain call.
    """
    if not torch.is_grad_enabled() or tracing():
        return function(*args, **kwargs)
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    passes = 0

    def run(*flat: Any) -> Any:
        nonlocal passes
        passes += 1
        given, named = pytree.tree_unflatten(list(flat), structure)
        with _buffers_kept(modules) if passes > 1 else contextlib.nullcontext():
            return function(*given, **named)

    with offload_inputs():
        return torch_checkpoint(run, *leaves, use_reentrant=False, preserve_rng_state=preserve_rng_state)


@contextlib.contextmanager
def _buffers_kept(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let the modules work on copies of their buffers, then give them back their own."""
    held = [(one, dict(one._buffers)) for module in modules for one in module.modules() if one._buffers]
    for owner, buffers in held:
        owner._buffers.update({name: one.clone() for name, one in buffers.items() if one is not None})
    try:
        yield
    finally:
        for owner, buffers in held:
            owner._buffers.clear()
            owner._buffers.update(buffers)
