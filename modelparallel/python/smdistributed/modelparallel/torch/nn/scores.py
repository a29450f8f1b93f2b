"""Scaled dot-product attention of some heads, with what is added to its scores; local to a rank.

Shapes: B samples, h heads, S queries, K keys, D channels of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def alibi_slopes(heads: int, bias_max: float = 8.0) -> Tensor:
    """[heads] float32: how fast each head's scores fall with distance.

    Source: Press et al., "Train Short, Test Long", arXiv 2108.12409, section 3: a geometric series down to
    2**-bias_max; where the number of heads is no power of two, every other one of the next longer series is put
    after the shorter.
    """
    longer = 2 ** math.ceil(math.log2(heads))
    slopes = torch.pow(2.0, -torch.arange(1, longer + 1, dtype=torch.float32) * bias_max / longer)
    if longer != heads:
        slopes = torch.cat([slopes[1::2], slopes[::2]])[:heads]
    return slopes


def alibi_bias(slopes: Tensor, queries: int, keys: int, like: Tensor) -> Tensor:
    """[1, h, S, K]: minus slope times distance; the last query stands at the last key."""
    distance = _distance(queries, keys, like.device).abs()
    bias = -slopes.to(like.device)[:, None, None] * distance
    return bias[None].to(like.dtype)


def causal_mask(queries: int, keys: int, device: torch.device, window: int | None = None) -> Tensor:
    """[S, K] bool: True where a key may be seen: not after its query, and not `window` or more positions before it."""
    distance = _distance(queries, keys, device)
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def _distance(queries: int, keys: int, device: torch.device) -> Tensor:
    places = torch.arange(queries, device=device)[:, None] + (keys - queries)
    return places - torch.arange(keys, device=device)[None, :]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
    fused: bool = True,
    in_float32: bool = False,
    prescale: float = 1.0,
) -> Tensor:
    """softmax(scale * query @ key + bias, of the keys that may be seen) @ value.

    query [B, h, S, D], key and value [B, h, K, D], bias [1 or B, 1 or h, 1 or S, K] -> [B, h, S, D]. fused: through
    torch's scaled_dot_product_attention. Else scores are computed here: the softmax in float32 if in_float32, and the
    product query @ key divided by `prescale` before, and multiplied after, where float16 would overflow.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    if fused:
        # The argument `scale` is younger than the function.
        query = query * (scale * math.sqrt(query.shape[-1]))
    if fused and bias is None and window is None and (not causal or queries == keys):
        return F.scaled_dot_product_attention(query, key, value, None, dropout, causal)
    wide = torch.promote_types(query.dtype, torch.float32) if in_float32 else query.dtype
    bias = None if bias is None else bias.to(wide)
    if causal or window is not None:
        seen = causal_mask(queries, keys, query.device, window)
        base = torch.zeros((), dtype=wide, device=query.device) if bias is None else bias
        bias = torch.where(seen, base, torch.finfo(wide).min)
    if fused:
        return F.scaled_dot_product_attention(query, key, value, bias, dropout)
    scores = torch.matmul(query.to(wide) * (scale / prescale), key.to(wide).transpose(-1, -2))
    if prescale != 1.0:
        scores = scores.to(torch.promote_types(wide, torch.float32)) * prescale
    scores = scores if bias is None else scores + bias
    weights = F.dropout(torch.softmax(scores, -1).to(value.dtype), dropout)
    return torch.matmul(weights, value)
