"""The counterparts of torch's own modules. They say in attributes what they were made with, also when copied."""

from __future__ import annotations

from typing import Any, Dict, Tuple, cast

from torch import nn

from .registry import Counterpart, add

Found = Tuple[Tuple[()], Dict[str, Any]]


def _linear(module: nn.Module) -> Found:
    linear = cast(nn.Linear, module)
    return (), {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
    }


def _embedding(module: nn.Module) -> Found:
    embedding = cast(nn.Embedding, module)
    names = ("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    # That of nn.Embedding, which the argument's default is not.
    return (), {**{name: getattr(embedding, name) for name in names}, "initializer_range": None}


def register() -> None:
    """Registers nn.Linear and nn.Embedding."""
    from ..nn import DistributedEmbedding, DistributedLinear

    add(nn.Linear, Counterpart(DistributedLinear, from_module=_linear))
    add(nn.Embedding, Counterpart(DistributedEmbedding, from_module=_embedding))
