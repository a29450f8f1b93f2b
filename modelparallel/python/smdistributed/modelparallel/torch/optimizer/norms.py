"""The norm of a gradient that is spread over ranks (C8, statement 16)."""

from __future__ import annotations

from typing import Iterable

import torch
import torch.distributed as dist

from .. import comm, marks, sharding
from ..state import state
from ..topology import CommGroup
from . import ownership


def global_norm(parameters: Iterable[torch.Tensor], norm_type: float = 2.0) -> float:
    """The norm of all gradients of a replica's model; every rank of the replica must call it with its own parameters.

    Not finite if any element anywhere is not. Before smp.init() it is that of these parameters alone.
    """
    grads = [_counted(parameter) for parameter in parameters if parameter.grad is not None]
    total = _total([grad for grad in grads if grad is not None], norm_type)
    for group in _sharing():
        total = _reduced(total, norm_type, group)
    return _root(total, norm_type)


def _sharing() -> list[dist.ProcessGroup]:
    """The groups over which a replica's gradients are spread."""
    shards = sharding.shard_group()
    found = [] if shards is None else [shards]
    if state.initialized and len(state.groups.members[CommGroup.MP_GROUP]) > 1:
        found.append(state.groups.process[CommGroup.MP_GROUP])
    return found


def _reduced(local: float, norm_type: float, group: dist.ProcessGroup) -> float:
    device = state.server.settings.device if state.server is not None else torch.device("cpu")
    total = torch.tensor([local], dtype=torch.float64, device=device)
    op = dist.ReduceOp.MAX if norm_type == float("inf") else dist.ReduceOp.SUM
    # A maximum may lose a NaN on the way: it travels as infinity.
    if norm_type == float("inf"):
        total = total.nan_to_num(nan=float("inf"), posinf=float("inf"))
    with comm.reaching("the norm of the gradients of all ranks"), marks.blocked("all_reduce", total.element_size()):
        dist.all_reduce(total, op=op, group=group)
    return total.item()


def norm_of(value: torch.Tensor, parameter: torch.Tensor, norm_type: float = 2.0) -> float:
    """The norm of a value of `parameter`'s shape: the parameter, its gradient, or its update.

    Of a slice that tensor parallelism has made it is that of the whole; the tensor parallel ranks all call it then.
    """
    norm = float(_norm(value, norm_type))
    if not (state.initialized and ownership.is_tensor_parallel(parameter)):
        return norm
    biggest = norm_type == float("inf")
    total = torch.tensor([norm if biggest else norm**norm_type], dtype=torch.float64, device=value.device)
    op = dist.ReduceOp.MAX if biggest else dist.ReduceOp.SUM
    dist.all_reduce(total, op=op, group=state.groups.process[CommGroup.TP_GROUP])
    return _root(total.item(), norm_type)


def scale_down(grads: Iterable[torch.Tensor], limit: float, norm: float) -> None:
    """Scale gradients, of that norm together, down to `limit` if it is larger; a norm that is NaN makes them NaN."""
    factor = limit / (norm + 1e-6)
    if not factor >= 1.0:
        for grad in grads:
            grad.mul_(factor)


def step_clipping() -> float:
    """The norm to which `optimizer.step()` itself scales gradients down, with sharded data parallelism; or 0."""
    return state.cfg.sdp_gradient_clipping if state.cfg.sharded_data_parallel_degree > 1 else 0.0


def _counted(parameter: torch.Tensor) -> torch.Tensor | None:
    """The gradient, on one rank only where all ranks that share a model have it; of a sharded one this rank's part."""
    if parameter.grad is None or not _counts_here(parameter):
        return None
    return sharding.local_shard(parameter.grad)


def _counts_here(parameter: torch.Tensor) -> bool:
    whole_on = sharding.shard_group()
    if whole_on is not None and not sharding.is_sharded(parameter) and dist.get_rank(whole_on) != 0:
        return False
    if state.initialized and state.topology.tp > 1 and not ownership.is_tensor_parallel(parameter):
        return bool(state.topology.coordinates(state.launch.rank).tp == 0)
    return True


def _total(grads: list[torch.Tensor], norm_type: float) -> float:
    if not grads:
        return 0.0
    norms = torch.stack([_norm(_dense(grad), norm_type) for grad in grads])
    return float(norms.max() if norm_type == float("inf") else norms.pow(norm_type).sum())


def _norm(grad: torch.Tensor, norm_type: float) -> torch.Tensor:
    # Half precision overflows on squares; double precision everywhere would be slow on GPUs.
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    norm: torch.Tensor = torch.linalg.vector_norm(grad, norm_type, dtype=wide)
    return norm.double()


def _dense(grad: torch.Tensor) -> torch.Tensor:
    # Equal rows of a sparse gradient add up before they count.
    return grad.coalesce().values() if grad.is_sparse else grad


def _root(total: float, norm_type: float) -> float:
    return total if norm_type == float("inf") else total ** (1.0 / norm_type)
