"""The process groups of torch.distributed: for each kind of group, one for the data of training and one for control.

Control groups carry objects and barriers over gloo. They are apart, because a group's collectives must be issued in one
order on all ranks, and those of training may be issued by another thread. Groups with the same members share one.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist

from .exceptions import SMPConfigError
from .topology import CommGroup, RankType, Topology

if TYPE_CHECKING:
    from .config import Config
    from .launch import Launch

__all__ = ["CommGroup", "Groups", "RankType", "join_world"]


def join_world(cfg: Config, launch: Launch) -> bool:
    """Initialises torch.distributed, unless the script has; True if this did.

    Raises SMPConfigError if the script's world is another one than the launcher's.
    """
    if dist.is_initialized():
        theirs = (dist.get_rank(), dist.get_world_size())
        if theirs != (launch.rank, launch.size):
            raise SMPConfigError(
                f"torch.distributed was initialized as rank {theirs[0]} of {theirs[1]}, but the launcher says rank "
                f"{launch.rank} of {launch.size}: initialize it with the launcher's ranks, or leave it to smp.init()"
            )
        return False
    backend = _backend(cfg)
    if launch.size == 1:
        dist.init_process_group(backend, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
        return True
    port = launch.master_port if cfg.ddp_port is None else cfg.ddp_port
    address = f"tcp://{launch.master_addr}:{port}"
    # The agent of torchrun already listens at the launch's port, and env:// knows how to use its store.
    method = "env://" if port == launch.master_port and dist.is_torchelastic_launched() else address
    dist.init_process_group(backend, init_method=method, rank=launch.rank, world_size=launch.size)
    return True


def _backend(cfg: Config) -> str:
    wanted = cfg.ddp_dist_backend
    if wanted == "smddp":
        # Importing it registers the back end.
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

        return "smddp"
    if wanted == "gloo":
        return "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        return "cpu:gloo,cuda:nccl"
    if wanted == "nccl":
        warnings.warn("smp: ddp_dist_backend is nccl and there is no GPU: gloo is used", stacklevel=2)
    return "gloo"


class Groups:
    """members: global ranks, ascending. process: for tensors of the training device. control: gloo, for CPU tensors.

    All three by kind, for the groups that `rank` is in. Every rank must create this at the same point of its program.
    """

    def __init__(self, topology: Topology, rank: int, timeout: timedelta | None = None) -> None:
        self.members = {kind: topology.members(kind, rank) for kind in CommGroup}
        world = tuple(range(topology.size))
        assert dist.group.WORLD is not None
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}  # torch 2.0 takes no None
        self.process = _by_kind(
            topology, rank, {world: dist.group.WORLD}, lambda ranks: dist.new_group(ranks, **options)
        )
        self.control = _by_kind(topology, rank, {}, lambda ranks: dist.new_group(ranks, backend="gloo", **options))

    def close(self) -> list[dist.ProcessGroup]:
        """Forgets all groups and returns those that this object made, for the caller to destroy and forget too."""
        made = {id(group): group for group in (*self.process.values(), *self.control.values())}
        self.process.clear()
        self.control.clear()
        return [group for group in made.values() if group is not dist.group.WORLD]


def _by_kind(
    topology: Topology,
    rank: int,
    made: dict[tuple[int, ...], dist.ProcessGroup],
    make: Callable[[list[int]], dist.ProcessGroup],
) -> dict[CommGroup, dist.ProcessGroup]:
    """The group of each kind that `rank` is in; every rank makes all groups, as torch.distributed wants."""
    found = {}
    for kind in CommGroup:
        for members in topology.partition(kind):
            if tuple(members) not in made:
                made[tuple(members)] = make(members)
        found[kind] = made[tuple(topology.members(kind, rank))]
    return found
