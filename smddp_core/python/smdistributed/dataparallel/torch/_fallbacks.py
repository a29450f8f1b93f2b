"""The back ends of torch that carry out, within an ``smddp`` group, what is not smddp's: gloo and NCCL."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from smdistributed.dataparallel.compiled import _C

__all__ = ["fallbacks"]


def fallbacks(store: c10d.Store, rank: int, size: int, seconds: float) -> tuple[Any, Any]:
    """For CPU tensors and for tensors on a GPU (``None`` without one): called by all ranks of a group as it is made."""
    return _gloo(store, rank, size, seconds), _nccl(store, rank, size, seconds)


def _gloo(store: c10d.Store, rank: int, size: int, seconds: float) -> Any:
    """On the address that ours uses: one setting for both."""
    gloo: Any = c10d.ProcessGroupGloo  # its options are not in torch's stubs
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=_C.address())]
    options._timeout = timedelta(seconds=seconds)
    return gloo(c10d.PrefixStore("gloo", store), rank, size, options)


def _nccl(store: c10d.Store, rank: int, size: int, seconds: float) -> Any:
    """Only where every rank has a GPU of its own, for NCCL refuses two ranks on one."""
    # By what torch was built with, not by what the machine has: all ranks must take part in the comparison.
    if not dist.is_nccl_available():
        return None
    gpus = c10d.PrefixStore("gpu", store)
    gpus.set(str(rank), _gpu())
    all_gpus = [gpus.get(str(other)) for other in range(size)]
    if b"" in all_gpus or len(set(all_gpus)) < size:
        return None
    nccl: Any = c10d.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=seconds)
    return nccl(c10d.PrefixStore("nccl", store), rank, size, options)


def _gpu() -> str:
    """Names this rank's GPU among all of the job: the current one, or the local rank's if none was chosen."""
    if not torch.cuda.is_available():
        return ""
    index = torch.cuda.current_device()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if index == 0 and local_rank < torch.cuda.device_count():
        index = local_rank
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    identity = getattr(torch.cuda.get_device_properties(index), "uuid", None)  # torch 2.4
    if identity is None:
        identity = visible[index] if index < len(visible) and visible[index] else index
    return f"{socket.gethostname()}/{identity}"
