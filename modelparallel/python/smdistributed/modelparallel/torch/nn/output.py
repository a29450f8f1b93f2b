"""The output block of a transformer layer (two linear maps), its inner channels split over the tensor-parallel
group."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..tp import initialize, region, world
from .linear import ColumnLinear, RowLinear
from .module import DistributedModule
from .options import obstacle_of, options_of
from .sublayer import Sublayer


class DistributedTransformerOutputLayer(Sublayer, DistributedModule):
    """hidden_size -> intermediate_size, activation, -> hidden_size, dropout; then residual and layer normalization.

    Arguments: those of DistributedTransformerLayer; others of TransformerOptions are taken by keyword.
    fp32_residual_addition: add in float32, where float16 would overflow. Raises SMPConfigError where sizes do not
    divide.

    `dense1` is [intermediate_size / t, hidden_size], `dense2` is [hidden_size, intermediate_size / t].
    """

    def __init__(
        self,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        fp32_residual_addition: bool = False,
        **more: Any,
    ) -> None:
        options = options_of(type(self).__name__, locals(), {"num_attention_heads": world.tp_size(), **more})
        super().__init__(options)
        with initialize.one_stream():
            self.dense1 = ColumnLinear(hidden_size, intermediate_size, True, options.std)
            self.dense2 = RowLinear(intermediate_size, hidden_size, True, options.std)
        self.add_layernorms()

    @classmethod
    def obstacle(cls, **arguments: Any) -> str | None:
        """See DistributedModule."""
        return obstacle_of({"num_attention_heads": world.tp_size(), **arguments})

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, S, H] -> [N, S, H]."""
        hidden = inputs
        if self.standalone:
            region.check_batch(hidden)
            hidden = region.enter(hidden)
        found = self.finish(hidden, self.branch(self.prepare(hidden)))
        return region.leave(found) if self.standalone else found

    def branch(self, states: Tensor) -> Tensor:
        """The layer without residual connection and layer normalization, inside the region."""
        inner = self.dense1(region.whole(states))
        if self.options.activation == "relu":
            inner = F.relu(inner)
        else:
            inner = F.gelu(inner, approximate="tanh" if self.options.activation == "gelu_new" else "none")
        found: Tensor = self.dense2(inner, self.hidden_dropout())
        return found
