"""Which rank is where: the arithmetic of degrees, placement letters and groups. Pure; communicates nothing.

Global ranks are numbers in a mixed radix of three digits: the letters of the placement strategy name them from the
slowest to the fastest. D counts reduced-data-parallel ranks (rdp), P pipeline ranks (pp), T tensor-parallel ranks (tp).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .exceptions import SMPConfigError, SMPValueError


class CommGroup(enum.Enum):
    """A kind of group; every rank is in one group of each kind."""

    WORLD = "world"
    MP_GROUP = "mp"
    DP_GROUP = "dp"
    PP_GROUP = "pp"
    TP_GROUP = "tp"
    RDP_GROUP = "rdp"


class RankType(enum.Enum):
    """Which numbering a rank is meant in; the group is the caller's own."""

    WORLD_RANK = "world"
    MP_RANK = "mp"
    DP_RANK = "dp"
    PP_RANK = "pp"
    TP_RANK = "tp"
    RDP_RANK = "rdp"

    @property
    def group(self) -> CommGroup:
        """The kind of group that this type counts in."""
        return CommGroup(self.value)


class Coordinates(NamedTuple):
    """The place of a rank along the three axes."""

    pp: int
    tp: int
    rdp: int


# The axes along which the members of a group differ.
_VARYING = {
    CommGroup.WORLD: {"pp", "tp", "rdp"},
    CommGroup.MP_GROUP: {"pp", "tp"},
    CommGroup.DP_GROUP: {"tp", "rdp"},
    CommGroup.PP_GROUP: {"pp"},
    CommGroup.TP_GROUP: {"tp"},
    CommGroup.RDP_GROUP: {"rdp"},
}
_AXES = {"D": "rdp", "P": "pp", "T": "tp"}


@dataclass(frozen=True)
class Topology:
    """The layout of `size` ranks for degrees pp and tp and a placement of three letters, the last varying fastest."""

    size: int
    pp: int = 1
    tp: int = 1
    placement: str = "DPT"

    def __post_init__(self) -> None:
        if self.size % (self.pp * self.tp):
            raise SMPConfigError(
                f"the job has {self.size} ranks: it must be a multiple of {self.pp * self.tp}, "
                f"pipeline_parallel_degree {self.pp} times tensor_parallel_degree {self.tp}"
            )

    @property
    def rdp(self) -> int:
        """Number of ranks that hold the same part of the same parameters."""
        return self.size // (self.pp * self.tp)

    def extent(self, group: CommGroup) -> int:
        """Number of ranks in each group of this kind."""
        count = 1
        for axis in _VARYING[group]:
            count *= int(getattr(self, axis))
        return count

    def coordinates(self, rank: int) -> Coordinates:
        """The place of a global rank."""
        return self._coordinates[rank]

    @cached_property
    def _coordinates(self) -> list[Coordinates]:
        found = []
        for rank in range(self.size):
            digits = {}
            rest = rank
            for letter in reversed(self.placement):
                axis = _AXES[letter]
                rest, digits[axis] = divmod(rest, getattr(self, axis))
            found.append(Coordinates(**digits))
        return found

    def members(self, group: CommGroup, rank: int) -> list[int]:
        """Global ranks of the group of this kind that `rank` is in, ascending."""
        fixed = [axis for axis in Coordinates._fields if axis not in _VARYING[group]]
        own = self.coordinates(rank)
        return [
            other
            for other, place in enumerate(self._coordinates)
            if all(getattr(place, axis) == getattr(own, axis) for axis in fixed)
        ]

    def partition(self, group: CommGroup) -> list[list[int]]:
        """All groups of this kind, by their lowest rank."""
        lists = [self.members(group, rank) for rank in range(self.size)]
        return [members for rank, members in enumerate(lists) if members[0] == rank]

    def rank_in(self, group: CommGroup, rank: int) -> int:
        """The index of a global rank among the members of its group of this kind."""
        return self.members(group, rank).index(rank)

    def to_global(self, rank_type: RankType, index: int, caller: int) -> int:
        """The global rank that `caller` means by rank `index` of this type. Raises SMPValueError if there is none."""
        members = self.members(rank_type.group, caller)
        if not 0 <= index < len(members):
            raise SMPValueError(
                f"there is no {rank_type.name} {index}: it must be from 0 to {len(members) - 1} in this job"
            )
        return members[index]
