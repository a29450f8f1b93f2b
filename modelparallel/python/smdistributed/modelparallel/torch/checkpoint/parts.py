"""What a rank has of a job: the files of a partial checkpoint that it writes, and reads."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import comm
from ..partition import encoded
from ..state import state
from . import names


class Parts(NamedTuple):
    """File names in the folder, for one rank."""

    model: str
    optimizer: str
    fp16: str
    replica: str


def here() -> names.Place:
    """This rank's place."""
    return names.Place(comm.pp_rank(), comm.tp_rank(), comm.rdp_rank())


def parts_of(place: names.Place, *, sharded_optimizer: bool) -> Parts:
    """The files of the rank at this place; replicas share what is the same on all of them."""
    return Parts(
        model=names.part("model", place, per_replica=False),
        optimizer=names.part("optimizer", place, per_replica=sharded_optimizer),
        fp16=names.part("fp16_states", place, per_replica=sharded_optimizer),
        replica=names.part("replica", place, per_replica=True),
    )


def sharded_optimizer() -> bool:
    """Whether replicas hold different parts of the optimizer's state."""
    return bool(state.cfg.shard_optimizer_state or state.cfg.sharded_data_parallel_degree > 1)


def partition_of(model: Any) -> dict[str, Any]:
    """The placement of a partitioned model, as a document."""
    return encoded(model.owners, model.module, comm.pp_size())


def description(model: Any, kinds: list[str]) -> dict[str, Any]:
    """What `partition.pt` says: the degrees, which module is on which pp_rank, and what is in the folder."""
    return {
        "pipeline_parallel_degree": comm.pp_size(),
        "tensor_parallel_degree": comm.tp_size(),
        "reduced_data_parallel_degree": comm.rdp_size(),
        "sharded_optimizer": sharded_optimizer(),
        "partition": partition_of(model) if model is not None else None,
        "kinds": kinds,
    }
