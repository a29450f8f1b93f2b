"""The back ends of torch that carry out, within an ``smddp`` group, what is not smddp's: gloo and NCCL."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from smdistributed.dataparallel.compiled import _C

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fallbacks"]

# How late a death is seen at worst.
_LOOK_SECONDS = 0.05


def fallbacks(
    store: c10d.Store,
    rank: int,
    size: int,
    seconds: float,
    watch: Callable[[], None],
    locals_: list[int],
    exchange: str,
) -> tuple[Any, Any, Any, bool]:
    """What serves a group, called by all its ranks as it is made.

    ``watch``: raises the error of a group whose ranks are no longer all there. ``locals_``: the ranks of this host, if
    there are several hosts and all have as many. ``exchange``: the setting ``SMDDP_GPU_EXCHANGE``. Returns the back end
    for CPU tensors, that for tensors on a GPU (``None`` where ranks share one or have none), the same for the ranks of
    this host alone (``None`` where nobody needs it), and whether all-reduces on GPUs cross between hosts by smddp's
    exchange.
    """
    gloo = _watched(lambda: _gloo(store, rank, size, seconds), seconds, watch)
    # By what torch was built with, not by what the machine has: all ranks must take part in the comparison.
    if not dist.is_nccl_available():
        return gloo, None, None, False
    mine = {"gpu": _gpu(), "rdma": _has_rdma()}
    ranks = _watched(lambda: _share(store, rank, size, mine), seconds, watch)
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


def _watched(make: Callable[[], Any], seconds: float, watch: Callable[[], None]) -> Any:
    """What ``make`` returns, made in a thread of its own, which is left behind when ``watch`` raises or time is up.

    While it connects, gloo waits 30 s for a rank that died or failed after it said where it listens, whatever the
    group's timeout, and looks at nothing but its own sockets. A store waits for its keeper without limit.
    """
    made: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        # The others leave at about the same time, which ends gloo's waiting while this interpreter ends.
        _C.make_expendable()
        try:
            made.put((make(), None))
        except BaseException as error:  # raised again where somebody waits
            made.put((None, error))

    threading.Thread(target=run, name="smddp-set-up", daemon=True).start()
    until = time.monotonic() + seconds
    while True:
        try:
            group, error = made.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            watch()
            if time.monotonic() > until:
                raise TimeoutError(f"not all ranks, or not the store, have answered in {seconds:g} s") from None
            continue
        if error is not None:
            raise error
        return group


def _require_descriptors(count: int) -> None:
    """Fail while it can still be said why: gloo's listener ends the process when it finds that there are no more.

    Raises:
        RuntimeError: this process may not open that many more.
    """
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise RuntimeError(
            f"gloo needs {count} descriptors: {error.strerror} in this process; raise its limit "
            "(ulimit -n, or LimitNOFILE of the service)"
        ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _gloo(store: c10d.Store, rank: int, size: int, seconds: float) -> Any:
    """On the address that ours uses: one setting for both."""
    # One for each other rank, four for itself, and what it accepts before it knows of whom.
    _require_descriptors(size + 8)
    gloo: Any = c10d.ProcessGroupGloo  # its options are not in torch's stubs
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=_C.address())]
    options._timeout = timedelta(seconds=seconds)
    return gloo(c10d.PrefixStore("gloo", store), rank, size, options)


def _share(store: c10d.Store, rank: int, size: int, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank says of itself, in rank order."""
    records = c10d.PrefixStore("gpu", store)
    records.set(str(rank), json.dumps(mine))
    return [json.loads(records.get(str(other))) for other in range(size)]


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
