"""`smp.DistributedOptimizer` and what it stands on: owned parameters, sharded state, norms over partitions."""

from .clipping import clip_grad_norm_
from .distributed import DistributedOptimizer

__all__ = ["DistributedOptimizer", "clip_grad_norm_"]
