"""Registers the torch.distributed backend ``smddp`` and completes the rank environment.

    import smdistributed.dataparallel.torch.torch_smddp
    torch.distributed.init_process_group(backend="smddp")
"""

import os

import torch
import torch.distributed as dist

from smdistributed.dataparallel.rank_environment import rank_environment

try:
    from smdistributed.dataparallel import _C
except ImportError as error:
    raise ImportError(
        f"smddp's compiled part does not load with torch {torch.__version__}: it is built for one torch release; "
        f"build the wheel again with this torch installed ({error})"
    ) from error

__all__ = ["path"]


def path(group: dist.ProcessGroup | None = None) -> str:
    """How an ``smddp`` group moves data, in words: ``host (shared memory)``, ``flat (TCP)``, ``hierarchical (...)``."""
    chosen = group or dist.group.WORLD
    if chosen is None:
        raise ValueError("smddp: call torch.distributed.init_process_group first")
    return str(_C.path(chosen._get_backend(torch.device("cpu"))))


def _gloo(options: dist.distributed_c10d._DistributedBackendOptions) -> dist.Backend:
    """The backend for everything that is not ours, on the address that ours uses: one setting for both."""
    gloo_options = dist.ProcessGroupGloo._Options()
    gloo_options._devices = [dist.ProcessGroupGloo.create_device(hostname=_C.address())]
    gloo_options._timeout = options.timeout
    return dist.ProcessGroupGloo(
        dist.PrefixStore("gloo", options.store), options.group_rank, options.group_size, gloo_options
    )


def _create(options: dist.distributed_c10d._DistributedBackendOptions, _backend_options: object) -> dist.Backend:
    return _C.create(
        dist.PrefixStore("smddp", options.store),
        options.group_rank,
        options.group_size,
        options.timeout.total_seconds(),
        options.group_id,
        _gloo(options),
    )


os.environ.update(rank_environment(os.environ))
# A list: a plain string would be taken letter by letter in some releases.
dist.Backend.register_backend("smddp", _create, extended_api=True, devices=["cpu", "cuda"])
