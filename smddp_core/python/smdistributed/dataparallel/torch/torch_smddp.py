"""Registers the torch.distributed backend ``smddp`` and completes the rank environment.

A script imports this module and then calls ``torch.distributed.init_process_group(backend="smddp")``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import inspect
import json
import multiprocessing.util
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from smdistributed.dataparallel import farewell, placement, tuning
from smdistributed.dataparallel.compiled import _C
from smdistributed.dataparallel.digits import is_whole_number
from smdistributed.dataparallel.exceptions import SMDDPUsageError
from smdistributed.dataparallel.rank_environment import rank_environment

__all__ = ["abort", "communication_cpus", "flight_recorder", "path", "stats"]


def _backend(group: dist.ProcessGroup | None) -> c10d.Backend:
    chosen: object = group or dist.group.WORLD
    if chosen is None:
        raise ValueError("smddp: call torch.distributed.init_process_group first")
    if chosen == dist.GroupMember.NON_GROUP_MEMBER:  # what new_group gives to the ranks it leaves out
        raise SMDDPUsageError("smddp: this rank is not a member of the group; ask on a rank that is")
    # Before torch 2.0, the group is the back end itself.
    of_device: Any = getattr(chosen, "_get_backend", lambda _: chosen)
    backend: c10d.Backend = of_device(torch.device("cpu"))
    return backend


def abort(group: dist.ProcessGroup | None = None) -> None:
    """End what ``group`` is doing and all that it is asked to do, on every rank, with ``SMDDPAbortedError``.

    May be called from another thread. ``group.abort()`` does the same where torch has it (2.7).
    """
    _C.abort(_backend(group))


def path(group: dist.ProcessGroup | None = None) -> str:
    """How an ``smddp`` group moves data, in words: ``host (shared memory)``, ``flat (TCP)``, ``hierarchical (...)``."""
    return str(_C.path(_backend(group)))


def stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """What this rank has done in ``group`` so far.

    ``operations`` has, for each kind, ``calls``, ``failures``, ``bytes``, ``seconds`` (in the operation),
    ``exposed_seconds`` (the program was blocked until it was done: in a synchronous call, in ``wait()``, or at the end
    of a backward pass under DDP; once, however many threads were) and ``bytes_per_second`` (algbw), those that gloo
    carries out (``gather``, ``send``, ...) included once there were some; beside it are
    ``group``, ``rank``, ``size``, ``host``, ``pid``, ``version``, ``path`` and ``error`` (None while the group lives).
    """
    found: dict[str, Any] = json.loads(_C.stats(_backend(group)))
    return found


def flight_recorder(group: dist.ProcessGroup | None = None) -> list[dict[str, Any]]:
    """The last operations of this rank in ``group`` (``SMDDP_FLIGHT_RECORDER`` of them), oldest first.

    Each has ``sequence``, ``operation``, ``dtype``, ``reduce``, ``root``, ``bytes``, ``state`` (``running``, ``done``,
    ``failed``), ``started`` and ``ended`` (Unix time in seconds) and ``waiting_for`` (the ranks that have not come).
    Those that gloo carries out have ``delegated`` in place of ``dtype``, ``reduce`` and ``root``; a ``send`` or
    ``recv`` also ``peer``, the other rank, and no ``sequence`` (None).
    May be called from another thread while an operation hangs.
    """
    return [json.loads(line) for line in _C.flight_recorder(_backend(group)).splitlines()[1:]]


def communication_cpus() -> str:
    """Cores given to the communication threads of groups made from now on, such as ``6-7``; empty for any core.

    ``SMDDP_CPUS`` if it is set; else those of this process that training does not need (``torch.get_num_threads()``).
    """
    chosen = os.environ.get("SMDDP_CPUS")
    if chosen:
        return chosen
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    if not is_whole_number(local_size) or int(local_size) == 0:
        return ""
    allowed = os.sched_getaffinity(0)
    return placement.to_list(
        placement.spare_cpus(allowed, os.cpu_count() or len(allowed), int(local_size), torch.get_num_threads())
    )


def _settings(rank: int, ranks: Sequence[int]) -> dict[str, str]:
    """This rank's cores and folder for failures; on rank 0, which chooses for all, also what the tuning table has."""
    cpus = communication_cpus()
    own = {"SMDDP_CPUS": cpus} if cpus else {}
    output = os.environ.get("SM_OUTPUT_DATA_DIR")
    if output:  # what `train` keeps of a job
        own["SMDDP_FLIGHT_RECORDER_DIR"] = os.path.join(output, "smddp")  # noqa: PTH118
    if rank != 0:
        return own
    key = tuning.topology_key(ranks, os.environ)
    measured = tuning.settings_for(key, os.environ, _C.settings(), _C.expected_instead)
    return {**measured, **own}


_stopped_children: set[int] = set()


def _stop_with_child() -> None:
    """Children of multiprocessing end without atexit's functions; groups that they made say farewell all the same."""
    if multiprocessing.parent_process() is None or os.getpid() in _stopped_children:
        return
    _stopped_children.add(os.getpid())
    multiprocessing.util.Finalize(None, _stop_after_threads, exitpriority=0)


def _stop_after_threads() -> None:
    """As in a program's main process, where threads end before atexit's functions run."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    _C.stop_all(farewell.reason_in_child())


def _make(store: c10d.Store, rank: int, size: int, timeout: timedelta, name: str, ranks: Sequence[int]) -> c10d.Backend:
    seconds = timeout.total_seconds()
    _stop_with_child()
    refusal = ""
    try:
        settings = _settings(rank, ranks)
    except SMDDPUsageError as error:
        # Raised here, it would leave the others waiting for this rank.
        settings, refusal = {}, str(error).replace("smddp: ", "", 1)
    return _C.create(store, rank, size, seconds, name, settings, list(ranks), refusal)


def _create(options: c10d._DistributedBackendOptions, _backend_options: object) -> c10d.Backend:
    rank, size = options.group_rank, options.group_size
    # Empty for the group of all ranks, in some releases.
    ranks = options.global_ranks_in_group or range(size)
    return _make(options.store, rank, size, options.timeout, options.group_id, ranks)


def _create_before_1_13(store: c10d.Store, rank: int, size: int, timeout: timedelta) -> c10d.Backend:
    return _make(store, rank, size, timeout, "group", range(size))


def _register() -> None:
    """Registers the creator with what arguments this release of torch takes."""
    register: Any = dist.Backend.register_backend
    known = inspect.signature(register).parameters
    # A list: a plain string would be taken letter by letter in some releases.
    devices = {"devices": ["cpu", "cuda"]} if "devices" in known else {}
    if "extended_api" in known:
        register("smddp", _create, extended_api=True, **devices)
    else:
        register("smddp", _create_before_1_13, **devices)


def _mark_steps() -> None:
    """Tell `shoal report` of this rank's steps, where `train` measures the job: then it has made this folder."""
    folder = os.path.join(os.environ.get("SM_OUTPUT_DIR", "/opt/ml/output"), "profiler", "steps")  # noqa: PTH118
    if not os.path.isdir(folder):  # noqa: PTH112
        return
    # Images have it. Elsewhere nothing is marked; nor may a fault in it keep anybody from training.
    with contextlib.suppress(Exception):
        importlib.import_module("shoal_entrypoint.marks").watch(_C.totals)


atexit.register(lambda: _C.stop_all(farewell.reason()))
os.environ.update(rank_environment(os.environ))
_register()
_mark_steps()
