"""Objects between ranks, process groups, and what init refuses; each body runs on real ranks."""

from __future__ import annotations

import os
from typing import Any

import pytest
from smp_jobs import run_ranks

TWO_BY_TWO = '{"partitions": 2, "ddp": true}'


class Custom:
    """An object of a class of the script, as users send them."""

    def __init__(self, value: int) -> None:
        self.value = value


def exchange() -> list[object]:
    import smdistributed.modelparallel.torch as smp
    import torch

    smp.init()
    found: list[object] = []
    message: dict[str, Any] = {
        "tensor": torch.arange(6.0).view(2, 3),
        "nested": [(1, "two"), None],
        "custom": Custom(7),
    }
    if smp.rank() == 0:
        smp.broadcast(message, smp.WORLD)
    else:
        received = smp.recv_from(0, smp.RankType.WORLD_RANK)
        assert torch.equal(received["tensor"], message["tensor"])
        assert received["nested"] == message["nested"]
        assert received["custom"].value == 7
    # Around the ring of each pipeline: the index is of this rank's own group.
    if smp.pp_rank() == 0:
        smp.send(("from", smp.rank()), 1, smp.RankType.PP_RANK)
        found.append(smp.recv_from(1, smp.RankType.PP_RANK))
    else:
        found.append(smp.recv_from(0, smp.RankType.PP_RANK))
        smp.send(("back", smp.rank()), 0, smp.RankType.PP_RANK)
    # Of several objects from one rank the first sent is the first received, whatever their sizes.
    if smp.dp_rank() == 0:
        for size in (100_000, 0, 3):
            smp.send("x" * size, 1, smp.RankType.DP_RANK)
    else:
        found.append([len(smp.recv_from(0, smp.RankType.DP_RANK)) for _ in range(3)])
    found.append(smp.allgather("a" * smp.rank(), smp.DP_GROUP))
    found.append(smp.allgather(smp.rank()))
    smp.barrier()
    smp.mp_barrier()
    smp.dp_barrier()
    smp.barrier(smp.RDP_GROUP)
    return found


@pytest.mark.parametrize("launcher", ["torchrun", "mpi"])
def test_objects_between_ranks(launcher: str) -> None:
    reports = [one.report for one in run_ranks(exchange, 4, launcher=launcher, config=TWO_BY_TWO)]
    everyone = [0, 1, 2, 3]
    assert reports == [
        [("back", 1), ["", "aa"], everyone],
        [("from", 0), ["a", "aaa"], everyone],
        [("back", 3), [100_000, 0, 3], ["", "aa"], everyone],
        [("from", 2), [100_000, 0, 3], ["a", "aaa"], everyone],
    ]


def reduce_in_every_group() -> dict[str, float]:
    import smdistributed.modelparallel.torch as smp
    import torch
    import torch.distributed as dist

    smp.init()
    sums = {}
    for name in ("world", "mp", "dp", "pp", "tp", "rdp"):
        value = torch.tensor(10.0 ** smp.rank())
        dist.all_reduce(value, group=getattr(smp, f"get_{name}_process_group")())
        sums[name] = value.item()
    return sums


def test_process_groups_are_those_of_torch() -> None:
    reports = [one.report for one in run_ranks(reduce_in_every_group, 4, config=TWO_BY_TWO)]
    pairs = {0: 11, 1: 11, 2: 1100, 3: 1100}
    strides = {0: 101, 1: 1010, 2: 101, 3: 1010}
    for rank, sums in enumerate(reports):
        assert sums == {
            "world": 1111,
            "mp": pairs[rank],
            "pp": pairs[rank],
            "tp": 10**rank,
            "dp": strides[rank],
            "rdp": strides[rank],
        }


def global_norm() -> tuple[float, float]:
    import smdistributed.modelparallel.torch as smp
    import torch

    smp.init()
    torch.manual_seed(0)
    gradient = torch.randn(1000, dtype=torch.float64)
    mine = gradient.chunk(smp.mp_size())[smp.mp_rank()]
    squares = smp.allgather(mine.pow(2).sum().item(), smp.MP_GROUP)
    return sum(squares) ** 0.5, gradient.norm().item()


def test_global_norm_over_partitions() -> None:
    """C8 and statement 16: the norm over all partitions from the library's own primitives."""
    for one in run_ranks(global_norm, 2, config='{"partitions": 2}'):
        gathered, whole = one.report
        assert gathered == pytest.approx(whole, rel=1e-12)


def wrong_calls() -> list[str]:
    import smdistributed.modelparallel.torch as untyped

    smp: Any = untyped
    calls: list[Any] = [
        lambda: smp.rank(),
        lambda: smp.allgather(1),
        lambda: smp.get_dp_process_group(),
        lambda: smp.num_microbatches(),
        lambda: smp.init(),
        lambda: smp.send(1, smp.rank()),
        lambda: smp.send(1, 2),
        lambda: smp.send(1, "0"),
        lambda: smp.recv_from(0, "PP_RANK"),
        lambda: smp.allgather(lambda: 1),
        lambda: smp.barrier("world"),
        lambda: smp.init({"microbatches": 7}),
    ]
    said = []
    for call in calls:
        try:
            call()
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_wrong_calls_get_one_sentence() -> None:
    """Statement 1: init comes before anything."""
    said = run_ranks(wrong_calls, 2, config='{"partitions": 2}')[1].report
    before = "NotInitializedError: smp is not initialized: call smp.init() before anything else of smp"
    assert said[:5] == [before] * 4 + [""]
    assert said[5] == "SMPValueError: smp.send: WORLD_RANK 1 is this rank itself: name another one"
    assert said[6] == "SMPValueError: there is no WORLD_RANK 2: it must be from 0 to 1 in this job"
    assert said[7] == "SMPValueError: smp.send: the rank is '0': it must be a whole number of at least 0"
    assert said[8] == "SMPValueError: smp.recv_from: rank_type is 'PP_RANK': it must be an smp.RankType"
    assert said[9].startswith("SMPValueError: an object of type function cannot be sent to another rank")
    assert (
        said[10]
        == "SMPValueError: smp.barrier: group is 'world': it must be an smp.CommGroup, as smp.WORLD or smp.DP_GROUP"
    )
    assert said[11] == "SMPConfigError: smp.init was called before with another configuration: call it once"


def leave_early() -> str:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    smp.barrier()
    if smp.rank() == 1:
        os._exit(3)
    try:
        smp.recv_from(1, smp.RankType.WORLD_RANK)
    except smp.exceptions.PeerLostError as error:
        return str(error)
    return "received"


def test_a_rank_that_ended_is_named() -> None:
    ranks = run_ranks(leave_early, 2, config='{"partitions": 2}', may_fail=[1])
    assert ranks[0].report.startswith("recv_from: waiting for rank 1: the other rank has ended or cannot be reached")
    assert ranks[1].returncode == 3


def refused() -> str:
    import smdistributed.modelparallel.torch as smp

    try:
        smp.init()
    except ValueError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ('{"partitions": 4}', "the job has 2 ranks: it must be a multiple of 4"),
        ("{}", "the job has 2 ranks and the model 1 part(s), so 2 replicas: set ddp to true"),
        ('{"ddp": true, "sharded_data_parallel_degree": 4}', "sharded_data_parallel_degree is 4: it must divide"),
    ],
)
def test_a_configuration_that_does_not_fit_the_job_is_refused(config: str, sentence: str) -> None:
    for one in run_ranks(refused, 2, config=config):
        assert one.report.startswith(sentence)


def theirs_first(size: int) -> object:
    import smdistributed.modelparallel.torch as smp
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    if size == 2:
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        smp.init()
    except ValueError as error:
        return str(error)
    return [smp.get_world_process_group() is dist.group.WORLD, smp.allgather(smp.rank())]


def test_a_world_that_the_script_made_is_used() -> None:
    for one in run_ranks(theirs_first, 2, 2, config='{"partitions": 2}'):
        assert one.report == [True, [0, 1]]


def test_a_world_of_another_size_is_refused() -> None:
    for rank, one in enumerate(run_ranks(theirs_first, 2, 1, config='{"partitions": 2}')):
        assert f"as rank 0 of 1, but the launcher says rank {rank} of 2" in one.report
