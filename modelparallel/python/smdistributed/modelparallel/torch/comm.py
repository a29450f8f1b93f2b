"""Ranks, sizes and groups of this process, and the exchange of Python objects between ranks.

All are synchronous and block until the other side takes part. Every function raises NotInitializedError before
`smp.init()`, and PeerLostError when a rank it waits for has ended.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator

import torch
import torch.distributed as dist

from . import checks
from .exceptions import PeerLostError, SMPValueError
from .objects import from_bytes, to_bytes
from .state import state
from .topology import CommGroup, RankType

_LENGTH, _PAYLOAD, _RECEIVED = 1, 2, 3
# A length and its payload must stay neighbours when two threads talk to one peer.
_sending, _receiving = threading.Lock(), threading.Lock()


def _rank_in(kind: CommGroup) -> int:
    return state.require().groups.members[kind].index(state.launch.rank)


def _size_of(kind: CommGroup) -> int:
    return len(state.require().groups.members[kind])


def rank() -> int:
    """Global rank of this process."""
    return state.require().launch.rank


def size() -> int:
    """Number of processes of the job."""
    return state.require().launch.size


def local_rank() -> int:
    """Rank of this process on its host: the index of its device."""
    return state.require().launch.local_rank


def local_size() -> int:
    """Number of processes on this host."""
    return state.require().launch.local_size


def mp_rank() -> int:
    """Rank among those that together hold one replica of the model."""
    return _rank_in(CommGroup.MP_GROUP)


def mp_size() -> int:
    """Number of ranks that together hold one replica of the model: pp_size() * tp_size()."""
    return _size_of(CommGroup.MP_GROUP)


def dp_rank() -> int:
    """Rank among those that hold the same pipeline partition."""
    return _rank_in(CommGroup.DP_GROUP)


def dp_size() -> int:
    """Number of ranks that hold the same pipeline partition: rdp_size() * tp_size()."""
    return _size_of(CommGroup.DP_GROUP)


def pp_rank() -> int:
    """Index of the pipeline partition of this rank."""
    return _rank_in(CommGroup.PP_GROUP)


def pp_size() -> int:
    """Number of pipeline partitions."""
    return _size_of(CommGroup.PP_GROUP)


def tp_rank() -> int:
    """Rank among those that share the distributed modules of one partition."""
    return _rank_in(CommGroup.TP_GROUP)


def tp_size() -> int:
    """Tensor parallel degree."""
    return _size_of(CommGroup.TP_GROUP)


def rdp_rank() -> int:
    """Rank among those that hold exactly the same parameters."""
    return _rank_in(CommGroup.RDP_GROUP)


def rdp_size() -> int:
    """Number of ranks that hold exactly the same parameters."""
    return _size_of(CommGroup.RDP_GROUP)


def num_microbatches() -> int:
    """Number of parts that a step cuts its batch into."""
    return state.require().cfg.microbatches


def is_initialized() -> bool:
    """Whether `smp.init()` has run."""
    return state.initialized


def _members(kind: CommGroup) -> list[int]:
    return list(state.require().groups.members[kind])


def get_mp_group() -> list[int]:
    """Global ranks of this rank's MP_GROUP, ascending."""
    return _members(CommGroup.MP_GROUP)


def get_dp_group() -> list[int]:
    """Global ranks of this rank's DP_GROUP, ascending."""
    return _members(CommGroup.DP_GROUP)


def get_pp_group() -> list[int]:
    """Global ranks of this rank's PP_GROUP, ascending."""
    return _members(CommGroup.PP_GROUP)


def get_tp_group() -> list[int]:
    """Global ranks of this rank's TP_GROUP, ascending."""
    return _members(CommGroup.TP_GROUP)


def get_rdp_group() -> list[int]:
    """Global ranks of this rank's RDP_GROUP, ascending."""
    return _members(CommGroup.RDP_GROUP)


def _process_group(kind: CommGroup) -> dist.ProcessGroup:
    return state.require().groups.process[kind]


def get_world_process_group() -> dist.ProcessGroup:
    """The torch.distributed group of all ranks."""
    return _process_group(CommGroup.WORLD)


def get_mp_process_group() -> dist.ProcessGroup:
    """The torch.distributed group of this rank's MP_GROUP."""
    return _process_group(CommGroup.MP_GROUP)


def get_dp_process_group() -> dist.ProcessGroup:
    """The torch.distributed group of this rank's DP_GROUP."""
    return _process_group(CommGroup.DP_GROUP)


def get_pp_process_group() -> dist.ProcessGroup:
    """The torch.distributed group of this rank's PP_GROUP."""
    return _process_group(CommGroup.PP_GROUP)


def get_tp_process_group() -> dist.ProcessGroup:
    """The torch.distributed group of this rank's TP_GROUP."""
    return _process_group(CommGroup.TP_GROUP)


def get_rdp_process_group() -> dist.ProcessGroup:
    """The torch.distributed group of this rank's RDP_GROUP."""
    return _process_group(CommGroup.RDP_GROUP)


def send(obj: Any, dest_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> None:
    """Sends any picklable object to a rank; returns after that rank's recv_from has taken it.

    dest_rank counts in this rank's own group of rank_type. Raises SMPValueError for a rank that does not exist or is
    this one, and for an object that cannot be pickled.
    """
    peer = _peer("send", dest_rank, rank_type)
    _send(to_bytes(obj), [peer])


def broadcast(obj: Any, group: CommGroup = CommGroup.WORLD) -> None:
    """Sends any picklable object to all other ranks of this rank's group; each must call recv_from for this rank.

    Returns after all have taken it. Raises SMPValueError as `send` does.
    """
    kind = _kind("broadcast", group)
    _send(to_bytes(obj), [peer for peer in _members(kind) if peer != rank()])


def recv_from(src_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    """The next object that a rank sends or broadcasts to this one; blocks until then.

    src_rank counts in this rank's own group of rank_type. Raises SMPValueError for a rank that does not exist or is
    this one.
    """
    peer = _peer("recv_from", src_rank, rank_type)
    group = state.groups.control[CommGroup.WORLD]
    with reaching(f"recv_from: waiting for rank {peer}"):
        with _receiving:
            length = torch.empty(1, dtype=torch.int64)
            dist.recv(length, peer, group, tag=_LENGTH)
            data = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(data, peer, group, tag=_PAYLOAD)
        dist.send(length, peer, group, tag=_RECEIVED)
    return from_bytes(data)


def allgather(obj: Any, group: CommGroup = CommGroup.WORLD) -> list[Any]:
    """The objects of all ranks of this rank's group, in the order of their ranks; all must call it.

    Raises SMPValueError for an object that cannot be pickled.
    """
    kind = _kind("allgather", group)
    control = state.require().groups.control[kind]
    own = to_bytes(obj)
    with reaching(f"allgather in {kind.name}"):
        lengths = [torch.empty(1, dtype=torch.int64) for _ in range(_size_of(kind))]
        dist.all_gather(lengths, torch.tensor([own.numel()]), group=control)
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: own.numel()] = own
        gathered = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
        dist.all_gather(gathered, padded, group=control)
    return [from_bytes(data[: int(length)]) for data, length in zip(gathered, lengths)]


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Returns when all ranks of this rank's group have called it."""
    kind = _kind("barrier", group)
    control = state.require().groups.control[kind]
    with reaching(f"barrier in {kind.name}"):
        dist.barrier(group=control)


def dp_barrier() -> None:
    """A barrier of this rank's DP_GROUP."""
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    """A barrier of this rank's MP_GROUP."""
    barrier(CommGroup.MP_GROUP)


def _send(data: torch.Tensor, peers: list[int]) -> None:
    group = state.groups.control[CommGroup.WORLD]
    for peer in peers:
        with reaching(f"sending to rank {peer}"), _sending:
            dist.send(torch.tensor([data.numel()]), peer, group, tag=_LENGTH)
            dist.send(data, peer, group, tag=_PAYLOAD)
    for peer in peers:
        with reaching(f"waiting until rank {peer} has called recv_from"):
            dist.recv(torch.empty(1, dtype=torch.int64), peer, group, tag=_RECEIVED)


def _peer(caller: str, index: int, rank_type: RankType) -> int:
    if not isinstance(rank_type, RankType):
        checks.refuse(f"smp.{caller}", "rank_type", rank_type, "an smp.RankType")
    checks.whole(f"smp.{caller}", "the rank", index, least=0)
    peer = state.require().topology.to_global(rank_type, index, state.launch.rank)
    if peer == state.launch.rank:
        raise SMPValueError(f"smp.{caller}: {rank_type.name} {index} is this rank itself: name another one")
    return peer


def _kind(caller: str, group: CommGroup) -> CommGroup:
    if not isinstance(group, CommGroup):
        checks.refuse(f"smp.{caller}", "group", group, "an smp.CommGroup, as smp.WORLD or smp.DP_GROUP")
    state.require()
    return group


@contextlib.contextmanager
def reaching(what: str) -> Iterator[None]:
    """Run what needs other ranks; raises PeerLostError, with `what` was done, where it fails because one is gone."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"{what}: the other rank has ended or cannot be reached: {error}") from error
