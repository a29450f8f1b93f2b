"""``DistributedDataParallel`` under the name that scripts of releases 1.0 to 1.3 import."""

from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
