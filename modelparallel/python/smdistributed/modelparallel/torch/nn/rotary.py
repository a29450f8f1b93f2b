"""Rotary position embedding. Source: Su et al., "RoFormer", arXiv 2104.09864, section 3.2."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, channels: int, base: float = 10000.0, halves: bool = False) -> Tensor:
    """Rotates pairs of the first `channels` channels of each head by angles that grow with the position.

    x: [B, h, S, D]. Pairs are adjacent channels (GPT-J), or channel i and i + channels/2 with `halves` (GPT-NeoX).
    """
    steps = torch.arange(0, channels, 2, device=x.device, dtype=torch.float64)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)[:, None] * base ** (-steps / channels)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    turned, rest = x[..., :channels], x[..., channels:]
    if halves:
        first, second = turned.chunk(2, -1)
        found = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
        found = torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)
    return torch.cat([found, rest], -1)
