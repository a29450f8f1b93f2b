"""The back ends of torch that carry out, within an ``smddp`` group, what is not smddp's: gloo and NCCL."""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from smdistributed.dataparallel.compiled import _C

__all__ = ["fallbacks"]


def fallbacks(
    store: c10d.Store, rank: int, size: int, seconds: float, locals_: list[int], exchange: str
) -> tuple[Any, Any, Any, bool]:
    """What serves a group, called by all its ranks as it is made.

    ``locals_``: the ranks of this host, if there are several hosts and all have as many. ``exchange``: the setting
    ``SMDDP_GPU_EXCHANGE``. Returns the back end for CPU tensors, that for tensors on a GPU (``None`` where ranks share
    one or have none), the same for the ranks of this host alone (``None`` where nobody needs it), and whether
    all-reduces on GPUs cross between hosts by smddp's exchange.
    """
    gloo = _gloo(store, rank, size, seconds)
    # By what torch was built with, not by what the machine has: all ranks must take part in the comparison.
    if not dist.is_nccl_available():
        return gloo, None, None, False
    records = c10d.PrefixStore("gpu", store)
    records.set(str(rank), json.dumps({"gpu": _gpu(), "rdma": _has_rdma()}))
    ranks = [json.loads(records.get(str(other))) for other in range(size)]
    gpus = {one["gpu"] for one in ranks}
    if "" in gpus or len(gpus) < size:
        return gloo, None, None, False
    nccl = _nccl("nccl", store, rank, size, seconds)
    if not locals_ or exchange == "never" or (exchange == "auto" and any(one["rdma"] for one in ranks)):
        return gloo, nccl, None, False
    if len(locals_) == 1:
        return gloo, nccl, None, True
    local = _nccl(f"nccl-host/{locals_[0]}", store, locals_.index(rank), len(locals_), seconds)
    return gloo, nccl, local, True


def _gloo(store: c10d.Store, rank: int, size: int, seconds: float) -> Any:
    """On the address that ours uses: one setting for both."""
    gloo: Any = c10d.ProcessGroupGloo  # its options are not in torch's stubs
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=_C.address())]
    options._timeout = timedelta(seconds=seconds)
    return gloo(c10d.PrefixStore("gloo", store), rank, size, options)


def _nccl(name: str, store: c10d.Store, rank: int, size: int, seconds: float) -> Any:
    """Connects when it is first used, and keeps the store for that."""
    nccl: Any = c10d.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=seconds)
    return nccl(c10d.PrefixStore(name, store), rank, size, options)


def _gpu() -> str:
    """Names this rank's GPU among all of the job, "" for none: the current one, or the local rank's if none was chosen.

    Hosts are those that NCCL knows, which refuses two ranks on one GPU of a host.
    """
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
    return f"{os.environ.get('NCCL_HOSTID') or socket.gethostname()}/{identity}"


def _has_rdma() -> bool:
    """Whether the host has a network device that NCCL can let read a GPU's memory: InfiniBand, RoCE, EFA."""
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())
