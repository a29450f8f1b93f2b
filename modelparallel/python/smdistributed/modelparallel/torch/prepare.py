"""The first step: trace the model, decide where its modules go, keep what is this rank's, share it with replicas."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist
from torch import nn

from . import comm, fp16, sharding
from .log import logger
from .partition import decide, evidence, format_assignments
from .partition import trace as trace_model
from .server import remote
from .server.failures import Failure, error_of, failure_of
from .server.tasks import Phase, Task, set_current
from .state import state
from .topology import CommGroup

if TYPE_CHECKING:
    from .model import DistributedModel


def prepare(model: DistributedModel, bodies: list[Callable[[], Any]] | None) -> None:
    """Partition `model` over the pipeline's ranks; every rank calls this at the same time.

    Args:
        model: not partitioned yet.
        bodies: the step's bodies by micro-batch: rank 0 traces the first. None where there is one partition only.
    """
    if (state.cfg.fp16 or state.cfg.bf16) and state.cfg.sharded_data_parallel_degree == 1:
        fp16.cast_at_root(model.module)
    owner = _decide(model, bodies)
    here = state.server.settings.pp_rank
    state.server.place(model.module, owner)
    remote.mark(model.module, owner)
    if state.server.settings.pp_size > 1:
        remote.install(state.server)
        remote.redirect(model.module, here)
    _materialise(model.module, [name for name, rank in owner.items() if rank == here])
    _release(model.module, here)
    _move(model.module, here, state.server.settings.device)
    broadcast_replicas(model, model.broadcast_buffers)
    if state.cfg.sharded_data_parallel_degree > 1:
        sharding.shard(model.module)
    model.placed(owner)
    if state.server.settings.pp_size > 1:
        _spare_collections()


def _spare_collections() -> None:
    """Take what exists now, torch's own modules above all, out of Python's garbage collections.

    A full one took 90 ms with torch alone, and while one rank collects all others of its pipeline wait. What comes to
    life later is collected as before.
    """
    gc.collect()
    gc.freeze()


def _decide(model: DistributedModel, bodies: list[Callable[[], Any]] | None) -> dict[str, int]:
    module = model.module
    if state.server.settings.pp_size == 1 or bodies is None:
        return {name: 0 for name, _ in module.named_modules()}
    decided: Any = None
    if state.launch.rank == 0:
        try:
            decided = _plan(model, bodies[0])
        except Exception as error:  # the others wait for a decision: they are told why there is none
            comm.allgather(failure_of(error, 0, None), CommGroup.WORLD)
            raise
    found = comm.allgather(decided, CommGroup.WORLD)[0]
    if isinstance(found, Failure):
        raise error_of(found)
    assert isinstance(found, dict)
    return found


def _plan(model: DistributedModel, body: Callable[[], Any]) -> dict[str, int]:
    trace = None
    if state.cfg.auto_partition and not state.cfg.skip_tracing:
        run, times, memory = _traced(body), model.trace_execution_times, model.trace_memory_usage
        trace = trace_model(model.module, run, times=times, memory=memory)
    owner = decide(model.module, trace, state.cfg)
    logger.info("%s", format_assignments(owner))
    evidence.leave(model.module, trace, owner)
    return owner


def _traced(body: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        task = Task(lambda: None, (0,), Phase.FORWARD, "the traced step function")
        task.tracing = True
        set_current(task)
        try:
            return body()
        finally:
            set_current(None)

    return run


def _materialise(module: nn.Module, names: list[str]) -> None:
    if any(parameter.device.type == "meta" for parameter in module.parameters()):
        from .partition import delayed_init

        delayed_init.materialise(module, names)


def _release(module: nn.Module, here: int) -> None:
    """Empty the parameters of other ranks in place: the optimizer built before keeps its objects, and their numbers."""
    kept = {
        id(parameter)
        for child in module.modules()
        if child.__dict__[remote.OWNER] == here
        for parameter in child._parameters.values()
        if parameter is not None
    }
    for parameter in module.parameters():
        if id(parameter) not in kept:
            parameter.grad = None
            if parameter.device.type == "meta":
                empty = nn.Parameter(torch.empty(0, dtype=parameter.dtype), parameter.requires_grad)
                torch.utils.swap_tensors(parameter, empty)  # type: ignore[no-untyped-call]
            else:
                parameter.data = torch.empty(0, dtype=parameter.dtype)


def _move(module: nn.Module, here: int, device: torch.device) -> None:
    for child in module.modules():
        if child.__dict__[remote.OWNER] != here:
            continue
        for parameter in child._parameters.values():
            if parameter is not None and parameter.device != device:
                parameter.data = parameter.data.to(device)
        for name, buffer in child._buffers.items():
            if buffer is not None and buffer.device != device:
                child._buffers[name] = buffer.to(device)


def broadcast_replicas(model: DistributedModel, buffers: bool = True) -> None:
    """Give all replicas the parameters, and buffers, of the first (statement 29).

    Parameters that tensor parallelism has cut go over the ranks that hold the same cut.
    """
    groups = state.groups
    for kind, tensors in model.replicated_tensors(buffers).items():
        if len(groups.members[kind]) > 1:
            source = groups.members[kind][0]
            with comm.reaching(f"sharing the parameters of rank {source} in {kind.name}"):
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), source, group=groups.process[kind])
