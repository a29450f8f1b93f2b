"""The tables of placement and groups that the documentation gives, and what holds for any layout."""

from __future__ import annotations

import itertools

import pytest
from smdistributed.modelparallel.torch.exceptions import SMPConfigError, SMPValueError
from smdistributed.modelparallel.torch.topology import CommGroup, Coordinates, RankType, Topology

SHAPES = [(1, 1, 1), (4, 2, 1), (8, 2, 1), (8, 2, 2), (8, 1, 4), (8, 8, 1), (12, 3, 2), (16, 2, 4)]
LETTERS = ["".join(order) for order in itertools.permutations("DPT")]


def test_coordinates_of_the_documented_example() -> None:
    documented = Topology(8, pp=2, tp=2, placement="DPT")
    for rank in range(8):
        assert documented.coordinates(rank) == Coordinates(rdp=rank // 4, pp=rank // 2 % 2, tp=rank % 2)


def test_the_last_letter_varies_fastest() -> None:
    other = Topology(8, pp=2, tp=2, placement="PTD")
    assert other.coordinates(1) == Coordinates(pp=0, tp=0, rdp=1)
    assert other.coordinates(2) == Coordinates(pp=0, tp=1, rdp=0)
    assert other.coordinates(4) == Coordinates(pp=1, tp=0, rdp=0)


@pytest.mark.parametrize(
    ("placement", "mp", "dp"),
    [
        ("TPD", [[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]),  # spread
        ("DPT", [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]]),  # cluster
    ],
)
def test_groups_of_spread_and_cluster(placement: str, mp: list[list[int]], dp: list[list[int]]) -> None:
    topology = Topology(8, pp=2, placement=placement)
    assert topology.partition(CommGroup.MP_GROUP) == mp
    assert topology.partition(CommGroup.DP_GROUP) == dp


@pytest.mark.parametrize(("size", "pp", "tp"), SHAPES)
@pytest.mark.parametrize("placement", LETTERS)
def test_identities_of_sizes(size: int, pp: int, tp: int, placement: str) -> None:
    topology = Topology(size, pp, tp, placement)
    extent = {kind: topology.extent(kind) for kind in CommGroup}
    assert extent[CommGroup.WORLD] == size
    assert extent[CommGroup.MP_GROUP] * extent[CommGroup.RDP_GROUP] == size
    assert extent[CommGroup.PP_GROUP] * extent[CommGroup.DP_GROUP] == size
    assert extent[CommGroup.PP_GROUP] * extent[CommGroup.TP_GROUP] * extent[CommGroup.RDP_GROUP] == size


@pytest.mark.parametrize(("size", "pp", "tp"), SHAPES)
@pytest.mark.parametrize("placement", LETTERS)
def test_groups_partition_the_world_and_hold_what_they_name(size: int, pp: int, tp: int, placement: str) -> None:
    topology = Topology(size, pp, tp, placement)
    for kind in CommGroup:
        groups = topology.partition(kind)
        assert sorted(itertools.chain(*groups)) == list(range(size))
        for members in groups:
            assert members == sorted(members)
            assert len(members) == topology.extent(kind)
            assert all(topology.members(kind, rank) == members for rank in members)
    for rank, other in itertools.product(range(size), repeat=2):
        own, theirs = topology.coordinates(rank), topology.coordinates(other)
        assert (other in topology.members(CommGroup.PP_GROUP, rank)) == ((own.tp, own.rdp) == (theirs.tp, theirs.rdp))
        assert (other in topology.members(CommGroup.DP_GROUP, rank)) == (own.pp == theirs.pp)
        assert (other in topology.members(CommGroup.RDP_GROUP, rank)) == ((own.pp, own.tp) == (theirs.pp, theirs.tp))


@pytest.mark.parametrize(("size", "pp", "tp"), SHAPES)
@pytest.mark.parametrize("placement", LETTERS)
def test_axis_ranks_are_the_coordinates(size: int, pp: int, tp: int, placement: str) -> None:
    topology = Topology(size, pp, tp, placement)
    for rank in range(size):
        own = topology.coordinates(rank)
        assert topology.rank_in(CommGroup.PP_GROUP, rank) == own.pp
        assert topology.rank_in(CommGroup.TP_GROUP, rank) == own.tp
        assert topology.rank_in(CommGroup.RDP_GROUP, rank) == own.rdp


@pytest.mark.parametrize("kind", list(RankType))
def test_conversion_to_global_ranks_goes_there_and_back(kind: RankType) -> None:
    topology = Topology(8, pp=2, tp=2, placement="PDT")
    for caller in range(8):
        for index in range(topology.extent(kind.group)):
            rank = topology.to_global(kind, index, caller)
            assert rank in topology.members(kind.group, caller)
            assert topology.rank_in(kind.group, rank) == index


@pytest.mark.parametrize("index", [-1, 2])
def test_a_rank_that_does_not_exist_is_refused(index: int) -> None:
    with pytest.raises(SMPValueError, match=rf"no PP_RANK {index}: it must be from 0 to 1"):
        Topology(4, pp=2).to_global(RankType.PP_RANK, index, 0)


def test_a_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(SMPConfigError, match="the job has 6 ranks: it must be a multiple of 4"):
        Topology(6, pp=2, tp=2)
