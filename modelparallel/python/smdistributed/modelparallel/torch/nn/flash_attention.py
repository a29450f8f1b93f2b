"""Attention of packed queries, keys and values by torch's memory-efficient kernels; nothing is distributed in it."""

from __future__ import annotations

import math

from torch import Tensor, nn

from ..exceptions import SMPValueError
from .scores import alibi_bias, alibi_slopes, attend


class FlashAttentionLayer(nn.Module):
    """Scaled dot-product attention through torch's scaled_dot_product_attention, which has flash attention on GPUs.

    attention_dropout_prob: of the attention probabilities, while training. attention_head_size: number of channels of a
    head, checked if given. scale_attention_scores: divide scores by its square root; scale_attn_by_layer_idx: and by
    layer_idx + 1. scale: a factor that replaces these. triton_flash_attention: accepted; the same kernels serve it, as
    documented without dropout. use_alibi: add ALiBi biases, for which the original needs triton_flash_attention.
    """

    def __init__(
        self,
        attention_dropout_prob: float = 0.1,
        attention_head_size: int | None = None,
        scale_attention_scores: bool = True,
        scale_attn_by_layer_idx: bool = False,
        layer_idx: int | None = None,
        scale: float | None = None,
        triton_flash_attention: bool = False,
        use_alibi: bool = False,
    ) -> None:
        super().__init__()
        if scale_attn_by_layer_idx and layer_idx is None:
            raise SMPValueError("FlashAttentionLayer: scale_attn_by_layer_idx is True: give layer_idx too")
        self.dropout = 0.0 if triton_flash_attention else attention_dropout_prob
        self.attention_head_size = attention_head_size
        self.scale_attention_scores = scale_attention_scores
        self.divisor = float(layer_idx + 1) if scale_attn_by_layer_idx and layer_idx is not None else 1.0
        self.scale = scale
        self.use_alibi = use_alibi

    def forward(self, qkv: Tensor, attn_mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """qkv: [B, S, 3, H, D] of B samples, S positions, H heads of D channels -> [B, H, S, D].

        attn_mask: [1 or B, 1 or H, 1 or S, S], added to the scores. causal: positions see no later ones. Raises
        SMPValueError for another shape.
        """
        if qkv.dim() != 5 or qkv.shape[2] != 3 or self.attention_head_size not in (None, qkv.shape[-1]):
            size = "D" if self.attention_head_size is None else self.attention_head_size
            raise SMPValueError(f"qkv has shape {tuple(qkv.shape)}: it must be [B, S, 3, H, {size}]")
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        bias = attn_mask
        if self.use_alibi:
            alibi = alibi_bias(alibi_slopes(qkv.shape[3]), qkv.shape[1], qkv.shape[1], query)
            bias = alibi if attn_mask is None else alibi + attn_mask
        scale = self.scale
        if scale is None:
            scale = (1 / math.sqrt(qkv.shape[-1]) if self.scale_attention_scores else 1.0) / self.divisor
        dropout = self.dropout if self.training else 0.0
        return attend(query, key, value, scale=scale, bias=bias, causal=causal, dropout=dropout)
