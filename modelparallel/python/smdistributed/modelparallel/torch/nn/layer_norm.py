"""Layer normalization: the replacement of apex's, and the one of distributed regions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ..tp import functions, region, shards, world


class FusedLayerNorm(nn.LayerNorm):
    """nn.LayerNorm under the name and with the arguments of apex's; torch runs it as one kernel.

    normalized_shape, eps, elementwise_affine: those of nn.LayerNorm.
    """

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True) -> None:
        super().__init__(normalized_shape, eps=eps, elementwise_affine=elementwise_affine)


class RegionLayerNorm(FusedLayerNorm):
    """Layer normalization over the hidden dimension inside a distributed region, in either layout.

    The parameters are whole on every rank. Where each rank has a slice of the hidden dimension, mean and variance are
    summed over the ranks, in two passes as torch does, at least in float32. The result has the type of the weight: a
    residual stream kept in float32 goes on in the type of the model.
    """

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps=eps)
        self.hidden_size = hidden_size
        self.mark()

    def mark(self) -> None:
        """Says that the parameters see the samples of all ranks of the group."""
        shards.mark_scaled(self.weight)
        shards.mark_scaled(self.bias)

    def reset_parameters(self) -> None:
        """Ones and zeros."""
        super().reset_parameters()
        self.mark()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """[N, S, H] or [N, S, H/t], as the region's layout is -> the same."""
        weight, bias = region.vector(self.weight), region.vector(self.bias)
        wide = torch.promote_types(input.dtype, self.weight.dtype)
        if world.tp_size() == 1 or not world.sliced_activations():
            found = F.layer_norm(input.to(wide), (self.hidden_size,), weight.to(wide), bias.to(wide), self.eps)
            return found.to(self.weight.dtype)
        x = input.to(torch.promote_types(wide, torch.float32))
        centred = x - functions.sum_for_parts(x.sum(-1, keepdim=True)) / self.hidden_size
        variance = functions.sum_for_parts(centred.pow(2).sum(-1, keepdim=True)) / self.hidden_size
        normal = centred * torch.rsqrt(variance + self.eps)
        return (normal * weight + bias).to(self.weight.dtype)
