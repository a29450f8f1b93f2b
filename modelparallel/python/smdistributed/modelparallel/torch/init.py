"""`smp.init`: from configuration and launcher to groups, device and server. Everything else needs it first."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import time
from typing import Any, Mapping

import torch.distributed as dist

from . import comm, device, marks
from . import config as configuration
from .accelerate_state import tell_accelerate
from .config import Config
from .exceptions import SMPConfigError
from .groups import Groups, join_world
from .launch import from_environ
from .log import logger, show_log
from .refusals import guard_backward
from .state import state
from .topology import Topology

# Whether torch.distributed was initialised here, and not by the script.
_joined = False
# In which a thread of gloo drops the tensors of the last operation.
_MOMENT_SECONDS = 0.05


def init(config: Mapping[str, Any] | str | None = None) -> None:
    """Starts the library on this rank; every rank of the job must call it, before anything else of smp.

    config: parameters as a dictionary, or the path of a JSON file; those that the job was launched with
    (SM_HP_MP_PARAMETERS) win. A second call changes nothing. Raises SMPConfigError (a ValueError) for a configuration
    that is wrong, does not fit the number of ranks, or is another one than at the first call.

    Selects the GPU of this local rank, where there are any, so that no call on the way there opens device 0.
    """
    cfg = configuration.load(config)
    if state.initialized:
        if config is not None and cfg != state.cfg:
            raise SMPConfigError("smp.init was called before with another configuration: call it once")
        return
    launch = from_environ()
    topology = Topology(launch.size, cfg.pipeline_parallel_degree, cfg.tensor_parallel_degree, cfg.placement_strategy)
    _check_fit(cfg, topology)
    device.select(launch)
    global _joined
    _joined = join_world(cfg, launch)
    state.cfg, state.launch, state.topology = cfg, launch, topology
    with comm.reaching("smp.init: forming the groups of ranks"):
        state.groups = Groups(topology, launch.rank)
    state.initialized = True
    show_log()
    if launch.rank == 0 and cfg.ignored():
        logger.info("smp: without effect: %s", ", ".join(f"{name}={value}" for name, value in cfg.ignored().items()))
    # Registered before the server exists, so run after it has closed whatever it registers itself.
    atexit.register(_leave)
    _start_server()
    guard_backward()
    tell_accelerate()
    marks.start(cfg)


def shutdown() -> None:
    """Ends the library on this rank; all ranks call it, after the last step. Exit does the same without it.

    Waits for the other ranks, so that none loses a peer it still needs. A second call does nothing.
    """
    if not state.initialized:
        return
    comm.barrier()
    state.initialized = False
    if state.server is not None:
        atexit.unregister(state.server.close)
        state.server.close()
    _leave()


def _check_fit(cfg: Config, topology: Topology) -> None:
    if topology.rdp > 1 and not cfg.ddp:
        parts = topology.pp * topology.tp
        raise SMPConfigError(
            f"the job has {topology.size} ranks and the model {parts} part(s), so {topology.rdp} replicas: "
            "set ddp to true, or start as many ranks as there are parts"
        )
    degree = cfg.sharded_data_parallel_degree
    if topology.rdp % degree:
        of = (
            f" with the same slices ({topology.rdp * topology.tp} by tensor_parallel_degree)" if topology.tp > 1 else ""
        )
        raise SMPConfigError(
            f"sharded_data_parallel_degree is {degree}: it must divide the number of data parallel ranks{of}, "
            f"{topology.rdp}"
        )


def _start_server() -> None:
    name = f"{__package__}.server"
    if importlib.util.find_spec(name) is not None:
        state.server = importlib.import_module(name).start()


def _leave() -> None:
    """Ends the groups while the interpreter still runs.

    A thread of gloo drops the tensors of its last operation a moment after the caller has the result; if the
    interpreter ended in that moment, the process would abort. Destroying a group waits for
    its threads, if nobody else holds it. Up to torch 2.3 at least it does so without letting go of Python's lock, which
    the thread needs to drop a tensor: it would never end. So it has its moment before.
    """
    groups = state.groups.close()
    time.sleep(_MOMENT_SECONDS)
    # At exit there is nobody left to tell, and a peer that is gone already is no news.
    with contextlib.suppress(Exception):
        while groups:
            dist.destroy_process_group(groups.pop())
        if _joined and dist.is_initialized():
            dist.destroy_process_group()
