"""Linear maps whose weight is split over the tensor-parallel group."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ..tp import functions, initialize, region, shards, world
from .module import DistributedModule, not_divisible, not_whole, refuse


class SplitLinear(shards.SlicedLoading):
    """The parameters of a linear map: a weight [out, in] of which this rank holds a slice, and a bias [out].

    dim: 0 if rows, that is outputs, are split (then the bias is too), 1 if columns, that is inputs. std: standard
    deviation of normally distributed weights, with a bias of zeros; None for the initialisation of nn.Linear.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        dim: int,
        bias: bool = True,
        std: float | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dim, self.std = in_features, out_features, dim, std
        shape = [out_features, in_features]
        shape[dim] //= world.tp_size()
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        drawn = nn.Parameter(torch.empty(shape[0], device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", drawn)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights."""
        shards.mark(self.weight, self.dim)
        initialize.fill(self.weight, (self.out_features, self.in_features), self.dim, self._draw_weight)
        if self.bias is not None:
            if self.dim == 0:
                shards.mark(self.bias, 0)
            initialize.fill(self.bias, (self.out_features,), 0 if self.dim == 0 else None, self._draw_bias)
        self.mark_scaled()

    def slices(self) -> dict[str, tuple[int, int]]:
        """See SlicedLoading."""
        found = {"weight": (self.dim, (self.out_features, self.in_features)[self.dim])}
        if self.bias is not None and self.dim == 0:
            found["bias"] = (0, self.out_features)
        return found

    def mark_scaled(self) -> None:
        """Marks the parameters that see the samples of all ranks of the group."""
        for parameter in self.parameters(recurse=False):
            shards.mark_scaled(parameter)

    def _draw_weight(self, full: Tensor) -> None:
        if self.std is None:
            nn.init.kaiming_uniform_(full, a=math.sqrt(5))
        else:
            full.normal_(0.0, self.std)

    def _draw_bias(self, full: Tensor) -> None:
        if self.std is None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            full.uniform_(-bound, bound)
        else:
            full.zero_()

    def extra_repr(self) -> str:
        """The sizes of the full weight and which of them is split."""
        split = "out" if self.dim == 0 else "in"
        return f"in_features={self.in_features}, out_features={self.out_features}, split={split}"


class ColumnLinear(SplitLinear):
    """Computes this rank's share of the outputs from the whole input, inside a distributed region.

    (Columns of the matrix that a row vector is multiplied by.)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, std: float | None = None) -> None:
        super().__init__(in_features, out_features, 0, bias, std)

    def forward(self, x: Tensor) -> Tensor:
        """[N, S, in], as region.whole returns it -> [N, S, out/t]."""
        bias = None if self.bias is None else region.parameter(self.bias)
        return F.linear(x, region.parameter(self.weight), bias)


class RowLinear(SplitLinear):
    """Sums over the ranks what each computes from its share of the inputs, inside a distributed region."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, std: float | None = None) -> None:
        super().__init__(in_features, out_features, 1, bias, std)

    def forward(self, x: Tensor, dropout: float = 0.0) -> Tensor:
        """[N, S, in/t] -> [N, S, out] in the region's layout, with the bias added, then dropout of this probability."""
        return region.sum_rows(F.linear(x, region.parameter(self.weight)), self.bias, dropout)


class DistributedLinear(DistributedModule, SplitLinear):
    """nn.Linear with the input channels of its weight split over the tensor-parallel group.

    in_features, out_features, bias, device, dtype: those of nn.Linear; in_features must be a multiple of
    tensor_parallel_degree (else SMPConfigError). `weight` is [out_features, in_features / t], `bias` [out_features].
    Each rank multiplies its channels of all ranks' samples; a reduce-scatter adds what belongs to a sample at its
    own rank. initializer_range: see SplitLinear.std.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        initializer_range: float | None = None,
    ) -> None:
        refuse("DistributedLinear", self.obstacle(in_features=in_features) or not_whole(1, out_features=out_features))
        SplitLinear.__init__(self, in_features, out_features, 1, bias, initializer_range, device, dtype)

    @classmethod
    def obstacle(cls, **arguments: Any) -> str | None:
        """See DistributedModule."""
        return not_divisible(in_features=arguments["in_features"])

    def mark_scaled(self) -> None:
        """Marks the weight: the bias is added to this rank's own samples."""
        shards.mark_scaled(self.weight)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """[B, ..., in_features] -> [B, ..., out_features]; B is the same on all ranks of the group (else
        SMPValueError)."""
        if input.dim() == 1:
            return self.forward(input.unsqueeze(0)).squeeze(0)
        region.check_batch(input)
        if world.prescaled():
            total = functions.sum_to_all(F.linear(functions.take(input, -1), self.weight))
        else:
            partial = F.linear(functions.batch_to_hidden(input), region.parameter(self.weight))
            total = functions.sum_to_slices(partial, 0)
        return total if self.bias is None else total + self.bias
