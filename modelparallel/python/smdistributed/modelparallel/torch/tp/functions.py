"""Differentiable collectives: each function's backward pass is the collective that its gradients need.

Gradient convention. A tensor that is the same on all t ranks (replicated) has the same whole gradient on all of them; a
tensor that is one of t slices has the gradient of its slice; a tensor that is one of t summands has the gradient of
the sum. So the pairs below are each other's adjoints. Source: Shoeybi et al., "Megatron-LM", arXiv 1909.08053,
section 3; Korthikanti et al., "Reducing Activation Recomputation", arXiv 2205.05198, section 4.2.2, for the
reduce-scatter forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import collectives, world

Transform = Callable[[Tensor], Tensor]


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Transform, backward: Transform) -> Tensor:
        ctx.transform = backward
        found = forward(x)
        return found.view_as(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transform(gradient), None, None


def _pair(x: Tensor, forward: Transform, backward: Transform) -> Tensor:
    if world.tp_size() == 1:
        return x
    found: Tensor = _Pair.apply(x, forward, backward)  # type: ignore[no-untyped-call]
    return found


def _same(x: Tensor) -> Tensor:
    return x


def take(x: Tensor, dim: int) -> Tensor:
    """Replicated -> this rank's slice of `dim`."""
    return _pair(x, lambda a: collectives.split(a, dim), lambda g: collectives.all_gather(g, dim))


def join(x: Tensor, dim: int) -> Tensor:
    """Slices of `dim` -> replicated, where every rank then does the same with it."""
    return _pair(x, lambda a: collectives.all_gather(a, dim), lambda g: collectives.split(g, dim))


def join_for_parts(x: Tensor, dim: int) -> Tensor:
    """Slices of `dim` -> the whole tensor, where each rank then computes another part of the result from it."""
    return _pair(x, lambda a: collectives.all_gather(a, dim), lambda g: collectives.reduce_scatter(g, dim))


def sum_to_slices(x: Tensor, dim: int) -> Tensor:
    """Summands -> slices of `dim` of their sum."""
    return _pair(x, lambda a: collectives.reduce_scatter(a, dim), lambda g: collectives.all_gather(g, dim))


def copy_for_parts(x: Tensor) -> Tensor:
    """Replicated -> replicated, where each rank then computes another part of the result from it."""
    return _pair(x, _same, collectives.all_reduce)


def sum_to_all(x: Tensor) -> Tensor:
    """Summands -> their sum, replicated, where every rank then does the same with it."""
    return _pair(x, collectives.all_reduce, _same)


def sum_for_parts(x: Tensor) -> Tensor:
    """Summands -> their sum, where each rank then computes another part of the result from it."""
    return _pair(x, collectives.all_reduce, collectives.all_reduce)


def batch_to_hidden(x: Tensor) -> Tensor:
    """Each rank's own samples, whole -> all ranks' samples, one slice of channels: [B, ..., H] -> [tB, ..., H/t]."""
    return _pair(x, lambda a: collectives.exchange(a, -1, 0), lambda g: collectives.exchange(g, 0, -1))


def hidden_to_batch(x: Tensor) -> Tensor:
    """The way back: [tB, ..., H/t] -> [B, ..., H]."""
    return _pair(x, lambda a: collectives.exchange(a, 0, -1), lambda g: collectives.exchange(g, -1, 0))


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """`x`; its gradient is multiplied by `factor`."""
    if factor == 1.0:
        return x
    found: Tensor = _Pair.apply(x, _same, lambda g: g * factor)  # type: ignore[no-untyped-call]
    return found
