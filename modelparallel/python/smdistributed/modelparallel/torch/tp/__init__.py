"""Tensor parallelism: which modules are split over the tensor-parallel group, and how tensors travel in it."""

from .births import remember
from .context import set_tensor_parallelism, tensor_parallelism
from .distribute import distribute
from .queries import TensorParallelQueries
from .registry import tp_register, tp_register_with_module
from .shards import gather_full, is_distributed, is_scaled_batch, shard_dim, take_local

remember()

__all__ = [
    "TensorParallelQueries",
    "distribute",
    "gather_full",
    "is_distributed",
    "is_scaled_batch",
    "set_tensor_parallelism",
    "shard_dim",
    "take_local",
    "tensor_parallelism",
    "tp_register",
    "tp_register_with_module",
]
