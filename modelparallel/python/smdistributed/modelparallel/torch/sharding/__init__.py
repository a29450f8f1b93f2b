"""Sharded data parallelism: parameters, gradients and optimizer state divided over groups of replicas.

The idea of small sharding groups is that of MiCS (arXiv 2205.00119); here it is torch's `fully_shard` on a mesh of
replicas by shards.
"""

from .apply import current_parameter, is_sharded, local_shard, shard, shard_group
from .partitions import FlatGroups
from .units import units

__all__ = ["FlatGroups", "current_parameter", "is_sharded", "local_shard", "shard", "shard_group", "units"]
