"""Modules whose weights are split over the tensor-parallel group, and fused layers: `smp.nn`."""

from ..tp import plain
from . import huggingface
from .attention import DistributedAttentionLayer
from .embedding import DistributedEmbedding
from .flash_attention import FlashAttentionLayer
from .layer_norm import FusedLayerNorm
from .linear import DistributedLinear
from .lm_head import DistributedTransformerLMHead
from .module import DistributedModule
from .output import DistributedTransformerOutputLayer
from .transformer import DistributedTransformer, DistributedTransformerLayer

__all__ = [
    "DistributedAttentionLayer",
    "DistributedEmbedding",
    "DistributedLinear",
    "DistributedModule",
    "DistributedTransformer",
    "DistributedTransformerLMHead",
    "DistributedTransformerLayer",
    "DistributedTransformerOutputLayer",
    "FlashAttentionLayer",
    "FusedLayerNorm",
    "huggingface",
]

plain.register()
