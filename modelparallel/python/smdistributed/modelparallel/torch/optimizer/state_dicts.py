"""The state_dict of a distributed optimizer: numbers as in the undistributed one, the state of this rank's parts.

{"state": {number: {name: value}}, "param_groups": [...], "_smp_is_partial": True}. A part's values carry two names more
where they apply: "_smp_piece" (start, stop, elements of the whole) and "_smp_master", the float32 weights.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

import torch

from .. import comm
from ..exceptions import SMPUnsupportedError, SMPValueError
from ..state import state
from ..topology import CommGroup
from . import ownership
from .parts import Part, Parts

PARTIAL = "_smp_is_partial"
PIECE = "_smp_piece"
MASTER = "_smp_master"
StateDict = Dict[str, Any]


def of_parts(optimizer: torch.optim.Optimizer, parts: Parts) -> StateDict:
    """This rank's part of the state, pieces as they are."""
    values: dict[int, dict[str, Any]] = {}
    for part in parts:
        own = dict(optimizer.state.get(part.parameter, {}))
        if part.master:
            own[MASTER] = part.parameter.detach()
        if own and part.piece is not None:
            own[PIECE] = (part.piece.start, part.piece.stop, part.source.numel())
        if own:
            values[part.index] = own
    return {"state": values, "param_groups": _groups(optimizer, parts), PARTIAL: True}


def _groups(optimizer: torch.optim.Optimizer, parts: Parts) -> list[dict[str, Any]]:
    found = []
    number = 0
    for group, sources in zip(optimizer.param_groups, parts.groups):
        options = {name: value for name, value in group.items() if name != "params"}
        found.append({**options, "params": list(range(number, number + len(sources)))})
        number += len(sources)
    return found


def whole(local: StateDict, parts: Parts) -> StateDict:
    """`local` with every piece made whole from the replicas' pieces; all ranks of a replica group call it."""
    if not any(PIECE in one for one in local["state"].values()) and not parts.sharded:
        return local
    gathered = comm.allgather(_to_cpu(local["state"]), CommGroup.DP_GROUP)
    pieces: dict[int, list[dict[str, Any]]] = {}
    ranks = state.groups.members[CommGroup.DP_GROUP]
    for index, parameter in enumerate(parts.sources()):
        same = set(state.groups.members[ownership.replicas_of(parameter)])
        found = [one[index] for rank, one in zip(ranks, gathered) if rank in same and index in one]
        if found:
            pieces[index] = found
    shapes = {index: parameter.shape for index, parameter in enumerate(parts.sources())}
    values = {index: _joined(found, shapes[index]) for index, found in pieces.items()}
    return {**local, "state": values}


def _joined(found: Sequence[Mapping[str, Any]], shape: torch.Size) -> dict[str, Any]:
    first = found[0]
    if PIECE not in first:
        return dict(first)
    # Shards may exist several times, and may be empty.
    ordered = [one for _, one in sorted({one[PIECE][:2]: one for one in found}.items())]
    first = max(ordered, key=lambda one: int(one[PIECE][1] - one[PIECE][0]))
    joined: dict[str, Any] = {}
    for name, value in first.items():
        if name == PIECE:
            continue
        start, stop, _ = first[PIECE]
        elementwise = isinstance(value, torch.Tensor) and value.numel() == stop - start and value.dim() > 0
        joined[name] = torch.cat([one[name].reshape(-1) for one in ordered]).view(shape) if elementwise else value
    return joined


def full(local: StateDict) -> StateDict:
    """The state of the whole model, the same on all ranks of a replica, which all call it."""
    if any(ownership.is_tensor_parallel(parameter) for parameter in state.model.local_parameters()):
        raise SMPUnsupportedError(
            "optimizer.state_dict() would mix the tensor parallel ranks' slices: use optimizer.local_state_dict(), "
            "or smp.save_checkpoint(..., partial=True)"
        )
    found = {name: value for name, value in local.items() if name != PARTIAL}
    found["state"] = merged([one["state"] for one in comm.allgather(_to_cpu(local), CommGroup.PP_GROUP)])
    return found


def merged(states: Sequence[Mapping[int, Any]]) -> dict[int, Any]:
    """The union of states by number, in the order of the numbers."""
    union: dict[int, Any] = {}
    for one in states:
        union.update(one)
    return dict(sorted(union.items()))


def for_parts(optimizer: torch.optim.Optimizer, parts: Parts, given: StateDict) -> StateDict:
    """What `optimizer.load_state_dict` is to be given: its own numbers, this rank's parts cut from `given`.

    given: a whole state, or a partial one; partial ones are exchanged over a replica's ranks if one lacks something.
    Raises SMPValueError for a state of another optimizer or another sharding.
    """
    check_groups(given, [len(sources) for sources in parts.groups])
    values: Mapping[int, Any] = given["state"]
    if given.get(PARTIAL) and state.topology.pp > 1:
        covered = all(part.index in values for part in parts if part.source.requires_grad)
        if not all(comm.allgather(covered, CommGroup.PP_GROUP)):
            values = merged(comm.allgather(_to_cpu(values), CommGroup.PP_GROUP))
    by_parameter = {id(part.parameter): part for part in parts}
    found: dict[int, Any] = {}
    groups = []
    number = 0
    for group, saved in zip(optimizer.param_groups, given["param_groups"]):
        for offset, parameter in enumerate(group["params"]):
            part = by_parameter.get(id(parameter))
            if part is not None and part.index in values:
                found[number + offset] = _of_part(part, values[part.index])
        count = len(group["params"])
        groups.append({**saved, "params": list(range(number, number + count))})
        number += count
    return {"state": found, "param_groups": groups}


def check_groups(given: StateDict, sizes: Sequence[int]) -> None:
    """Raises SMPValueError unless `given` is of an optimizer with groups of these sizes."""
    if not isinstance(given, Mapping) or "state" not in given or "param_groups" not in given:
        raise SMPValueError("optimizer.load_state_dict was given no optimizer state: it has 'state' and 'param_groups'")
    saved = [len(group["params"]) for group in given["param_groups"]]
    if saved != list(sizes):
        raise SMPValueError(
            f"the state is of an optimizer with groups of {saved} parameters, this one has {list(sizes)}: "
            "load it into an optimizer that is built alike"
        )


def _of_part(part: Part, saved: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in saved.items() if name != PIECE}
    wanted = None if part.piece is None else (part.piece.start, part.piece.stop, part.source.numel())
    piece = saved.get(PIECE)
    if piece is not None and tuple(piece) != wanted:
        raise SMPValueError(
            f"the state of parameter {part.index} is of elements {piece[0]} to {piece[1]}, sharded over another "
            "number of replicas: save it with local_state_dict(gather_if_shard=True), or load it in such a job"
        )
    if piece is None and part.piece is not None:
        values = {name: _sliced(part, value) for name, value in values.items()}
    master = values.pop(MASTER, None)
    if master is not None and part.master:
        with torch.no_grad():
            part.parameter.copy_(master.view_as(part.parameter))
    return values


def _sliced(part: Part, value: Any) -> Any:
    assert part.piece is not None
    if part.piece.numel == part.source.numel() or not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    if value.numel() != part.source.numel():
        return value
    return value.reshape(-1)[part.piece.start : part.piece.stop].clone()


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {name: _to_cpu(one) for name, one in value.items()}
    return [_to_cpu(one) for one in value] if isinstance(value, list) else value
