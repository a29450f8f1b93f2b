"""The attention block of a transformer, its heads split over the tensor-parallel group."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch
from torch import Tensor

from ..tp import initialize, region, world
from .linear import ColumnLinear, RowLinear
from .module import DistributedModule
from .options import described, obstacle_of, options_of
from .rotary import rotate
from .scores import alibi_bias, alibi_slopes, attend
from .sublayer import Sublayer


class DistributedAttentionLayer(Sublayer, DistributedModule):
    """Attention, a linear map and dropout; then, where asked for, the residual connection and layer normalization.

    Arguments: those of DistributedTransformerLayer, and cross_attention: keys and values are computed from
    cross_states. Others of TransformerOptions are taken by keyword. Raises SMPConfigError where heads or sizes do
    not divide.

    `query`, `key` and `value` hold this rank's heads [heads * head_size / t, hidden_size]; `dense` is
    [hidden_size, heads * head_size / t].
    """

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        cross_attention: bool = False,
        causal_mask_size: int | None = None,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        **more: Any,
    ) -> None:
        options = options_of(type(self).__name__, locals(), {"intermediate_size": world.tp_size(), **more})
        super().__init__(options)
        self.cross_attention = cross_attention
        self.heads = num_attention_heads // world.tp_size()
        size = num_attention_heads * attention_head_size
        with initialize.one_stream():
            self.query = ColumnLinear(hidden_size, size, options.use_qkv_bias, options.std)
            self.key = ColumnLinear(hidden_size, size, options.use_qkv_bias, options.std)
            self.value = ColumnLinear(hidden_size, size, options.use_qkv_bias, options.std)
            self.dense = RowLinear(size, hidden_size, options.use_attn_dense_bias, options.std)
        self.add_layernorms()

    @classmethod
    def obstacle(cls, **arguments: Any) -> str | None:
        """See DistributedModule."""
        return obstacle_of({"intermediate_size": world.tp_size(), **arguments})

    def forward(self, inputs: Sequence[Tensor | None]) -> Tensor:
        """The attention layer's output [N, S, H] for `inputs`:

        (hidden_states [N, S, H], attention_mask [N, 1, 1, S] or None, which is added to the scores), or, with
        cross_attention, (hidden_states [N, S, H], cross_states [N, S2, H], attention_mask [N, 1, 1, S2] or None).
        """
        hidden, cross, mask = self._unpacked(inputs)
        if self.standalone:
            (mask,) = region.enter_masks(hidden, [mask])
            hidden = region.enter(hidden)
            cross = None if cross is None else region.enter(cross)
        found = self.finish(hidden, self.branch(self.prepare(hidden), cross, mask))
        return region.leave(found) if self.standalone else found

    def branch(self, states: Tensor, cross: Tensor | None, mask: Tensor | None) -> Tensor:
        """The layer without residual connection and layer normalization, inside the region."""
        states = region.whole(states)
        source = states if cross is None else region.whole(cross.to(states.dtype))
        query, key = self._heads(self.query(states)), self._heads(self.key(source))
        value = self._heads(self.value(source))
        options = self.options
        if options.rotary_dim:
            query = rotate(query, options.rotary_dim, options.rotary_emb_base, options.gpt_neox_type_rotary)
            key = rotate(key, options.rotary_dim, options.rotary_emb_base, options.gpt_neox_type_rotary)
        layer = 1 if options.layer_idx is None else options.layer_idx + 1
        causal = options.causal_mask_size is not None and not self.cross_attention
        context = attend(
            query,
            key,
            value,
            scale=self._scale(layer),
            bias=self._bias(mask, query, key),
            causal=causal,
            window=options.window_size if causal else None,
            dropout=options.attention_dropout_prob if self.training else 0.0,
            fused=options.fused_softmax and not (options.attention_in_fp32 or options.query_key_layer_scaling),
            in_float32=options.attention_in_fp32,
            prescale=float(layer) if options.query_key_layer_scaling else 1.0,
        )
        found: Tensor = self.dense(context.transpose(1, 2).flatten(2), self.hidden_dropout())
        return found

    def _unpacked(self, inputs: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        wanted = 3 if self.cross_attention else 2
        if not isinstance(inputs, (tuple, list)) or len(inputs) != wanted:
            names = "(hidden_states, cross_states, attention_mask)" if self.cross_attention else "(hidden_states, mask)"
            raise TypeError(f"DistributedAttentionLayer takes one tuple {names}, it got {described(inputs)}")
        hidden, cross, mask = inputs if self.cross_attention else (inputs[0], None, inputs[1])
        assert hidden is not None
        return hidden, cross, mask

    def _heads(self, x: Tensor) -> Tensor:
        """[N, S, h * D] -> [N, h, S, D]."""
        return x.view(*x.shape[:-1], self.heads, self.options.attention_head_size).transpose(1, 2)

    def _scale(self, layer: int) -> float:
        scale = 1.0
        if self.options.scale_attention_scores:
            scale /= math.sqrt(self.options.attention_head_size)
        return scale / layer if self.options.scale_attn_by_layer_idx else scale

    def _bias(self, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        first = world.tp_rank() * self.heads
        if mask is not None and mask.dim() == 4 and mask.shape[1] > 1:
            mask = mask[:, first : first + self.heads]
        # The mask of a wider type may hold what is infinite in this one.
        mask = None if mask is None else mask.clamp(min=torch.finfo(query.dtype).min).to(query.dtype)
        if not self.options.use_alibi:
            return mask
        slopes = alibi_slopes(self.options.num_attention_heads, self.options.alibi_bias_max)
        alibi = alibi_bias(slopes[first : first + self.heads], query.shape[-2], key.shape[-2], query)
        return alibi if mask is None else alibi + mask
