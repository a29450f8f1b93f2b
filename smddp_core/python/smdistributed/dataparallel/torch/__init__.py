"""The PyTorch side. Importing ``torch_smddp`` from here registers the backend; this package alone does nothing.

The three functions are those of releases 1.0 to 1.3, for scripts that still call them.
"""

from __future__ import annotations

__all__ = ["get_local_rank", "get_rank", "get_world_size"]

# The imports stand inside: the module they name warns that it is deprecated, and this package must not.


def get_rank() -> int:
    """This process's rank among all; see ``smdistributed.dataparallel.torch.distributed``."""
    from smdistributed.dataparallel.torch import distributed

    return distributed.get_rank()


def get_world_size() -> int:
    """Number of ranks."""
    from smdistributed.dataparallel.torch import distributed

    return distributed.get_world_size()


def get_local_rank() -> int:
    """This process's rank among those of its host."""
    from smdistributed.dataparallel.torch import distributed

    return distributed.get_local_rank()
