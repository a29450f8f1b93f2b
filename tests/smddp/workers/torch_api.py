"""What else a torch.distributed group offers: splitting, coalescing, timeouts, work objects, several back ends."""

from __future__ import annotations

import copy
import json
import os
from datetime import timedelta
from typing import Any

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist

CPU = torch.device("cpu")
torch_dist: Any = dist  # with the names that it does not export


def world() -> Any:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def summed(tensor: torch.Tensor, group: Any = None) -> float:
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def raised(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def failed_with_exception(work: dist.Work) -> bool | None:
    """None where torch cannot hand the exception to Python, as 2.11 cannot."""
    try:
        return work.exception() is not None
    except TypeError:
        return None


def splits(rank: int, size: int) -> None:
    """Groups that are split off, and one that is merged again, share nothing with their parent."""
    ranks = [r for r in range(size) if r % 2 == rank % 2]
    part = world().split_group(ranks, timeout=timedelta(seconds=30), group_desc="half")
    tensor = torch.full((4,), float(rank))
    part.allreduce([tensor]).wait()
    assert tensor[0] == sum(ranks), (tensor, ranks)
    gathered = [torch.zeros(1) for _ in ranks]
    part.allgather([gathered], [torch.tensor([float(rank)])]).wait()
    assert torch.cat(gathered).tolist() == ranks
    part.reduce([tensor]).wait()
    store = torch_dist.PrefixStore("merged", dist.distributed_c10d._get_default_store())
    merged = world().merge_remote_group(store, size, timedelta(seconds=30), "merged")
    tensor = torch.ones(4)
    merged.allreduce([tensor]).wait()
    assert tensor[0] == size
    for group in (part, merged):
        group.shutdown()


def options() -> None:
    """A copy, as torch takes of the options of a group that it splits."""
    backend: Any = world()._get_backend(CPU)
    assert backend.options.backend == "smddp"
    copied = copy.deepcopy(backend.options)
    copied._timeout = timedelta(seconds=7)
    assert backend.options._timeout == copy.copy(backend.options)._timeout != copied._timeout


def coalescing(size: int) -> None:
    tensors = [torch.full((10,), float(i)) for i in range(5)]
    with torch_dist._coalescing_manager(device=CPU, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert [tensor[0] for tensor in tensors] == [i * size for i in range(5)]
    backend = world()._get_backend(CPU)
    backend._start_coalescing()
    works = [backend.allreduce([tensor]) for tensor in tensors]
    works.append(backend.reduce(torch.ones(1), 0))
    together = backend._end_coalescing()
    results = together.get_future().wait()
    assert together.is_completed()
    assert all(work.is_completed() for work in works)
    assert [float(tensor[0]) for tensor in results[:5]] == [float(i * size**2) for i in range(5)]


def reductions(rank: int, size: int) -> None:
    """Beside those of the core's types: bool, PREMUL_SUM, complex."""
    flags = torch.tensor([rank == 0, True, False])
    for op, expected in (
        (dist.ReduceOp.SUM, [True, True, False]),
        (dist.ReduceOp.PRODUCT, [size == 1, True, False]),
        (dist.ReduceOp.MIN, [size == 1, True, False]),
        (dist.ReduceOp.MAX, [True, True, False]),
    ):
        found = flags.clone()
        dist.all_reduce(found, op=op)
        assert found.view(torch.uint8).tolist() == [int(one) for one in expected], (op, found)
    scaled = torch.full((3,), float(rank + 1))
    dist.all_reduce(scaled, op=torch_dist._make_nccl_premul_sum(0.5))
    assert scaled.tolist() == [size * (size + 1) / 4] * 3
    shard = torch.empty(2)
    dist.reduce_scatter_tensor(shard, torch.ones(2 * size), op=torch_dist._make_nccl_premul_sum(2.0))
    assert shard.tolist() == [2.0 * size] * 2
    numbers = torch.full((2,), complex(rank, 1))
    dist.all_reduce(numbers)
    assert numbers.tolist() == [complex(sum(range(size)), size)] * 2


def results_within_inputs(rank: int, size: int) -> None:
    """Where memory is saved by giving a part of one side as the other: gloo copies, and has the right numbers."""
    for count in (4, 1000, 100_000):
        whole = torch.arange(float(count * size)) % 7 + 1
        parts = list(whole.chunk(size))
        share = parts[rank] * (size * (size + 1) // 2)
        everyone = torch.cat([parts[0] * (one + 1) for one in range(size)])
        for place in (0, rank, 1):
            given = whole * (rank + 1)
            result = given[place * count : (place + 1) * count]
            dist.reduce_scatter_tensor(result, given)
            assert torch.equal(result, share), (count, place)
            lists = [part * (rank + 1) for part in parts]
            dist.reduce_scatter(lists[place], lists)
            assert torch.equal(lists[place], share), (count, place)
            gathered = torch.zeros(count * size)
            own = gathered[place * count : (place + 1) * count].copy_(parts[0] * (rank + 1))
            dist.all_gather_into_tensor(gathered, own)
            assert torch.equal(gathered, everyone), (count, place)
            outputs = [torch.zeros(count) for _ in range(size)]
            dist.all_gather(outputs, outputs[place].copy_(parts[0] * (rank + 1)))
            assert torch.equal(torch.cat(outputs), everyone), (count, place)
        # From the middle of one part to that of the next.
        given = whole * (rank + 1)
        result = given[count // 2 : count // 2 + count]
        dist.reduce_scatter_tensor(result, given)
        assert torch.equal(result, share), count


def tensors_that_share_memory(size: int) -> None:
    """As of a tied weight: each element is summed once, however large the tensors are."""
    for count in (4, 10_000, 1_000_000):
        tied, other = torch.ones(count), torch.ones(5)
        torch_dist.all_reduce_coalesced([tied, other, tied])
        assert tied.tolist() == [float(size)] * count
        halves = torch.ones(2 * count)
        torch_dist.all_reduce_coalesced([halves[: count + count // 2], halves[count:]])
        assert halves.tolist() == [float(size)] * (2 * count)


def work_objects(rank: int, size: int) -> dict[str, str]:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work is not None
    assert work.wait(timedelta(seconds=30))
    assert work.is_completed()
    assert work.is_success()
    assert not failed_with_exception(work)
    assert [tensor.tolist() for tensor in work.result()] == [[size] * 3]
    assert work.get_future().done()
    later = work.get_future().then(lambda future: future.value()[0] + 1).then(lambda future: future.value() * 2)
    assert later.wait().tolist() == [2.0 * (size + 1)] * 3
    everyone = dist.all_gather([torch.zeros(1) for _ in range(size)], torch.tensor([float(rank)]), async_op=True)
    assert everyone is not None
    joined = everyone.get_future().then(lambda future: torch.cat(future.value()).tolist())
    assert joined.wait() == [float(one) for one in range(size)], "the future's value is one list, as of gloo"
    peer = (rank + 1) % size
    received = torch.zeros(1)
    requests = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.tensor([float(rank)]), peer), dist.P2POp(dist.irecv, received, (rank - 1) % size)]
    )
    for request in requests:
        request.wait()
    assert received[0] == (rank - 1) % size
    if rank == 0:
        source = dist.recv(received)
        assert received[0] == source == size - 1
    elif rank == size - 1:
        dist.send(torch.tensor([float(rank)]), 0)
    short = dist.new_group(timeout=timedelta(seconds=2))
    late = {}
    if rank == 0:
        failing = dist.all_reduce(torch.ones(1), group=short, async_op=True)
        assert failing is not None
        late = {"wait": raised(failing.wait), "future": raised(failing.get_future().wait)}
        assert failed_with_exception(failing) is not False
        assert not failing.is_success()
    dist.barrier()
    return late


def timeouts(size: int) -> str:
    world().set_timeout(timedelta(seconds=35))
    world().monitored_barrier(timedelta(seconds=30))
    return raised(dist.monitored_barrier)


def several_back_ends(size: int) -> None:
    for backend in ("cpu:smddp", "cpu:gloo,cuda:smddp", "cpu:smddp,cuda:smddp", "gloo", "smddp"):
        group = dist.new_group(backend=backend)
        assert summed(torch.ones(2), group) == size, backend
        assert "smddp" in dist.get_backend_config(group) or backend == "gloo"
        dist.destroy_process_group(group)


def main() -> None:
    dist.init_process_group("smddp", timeout=timedelta(seconds=40))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "smddp"
    report: dict[str, Any] = {}
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG") != "DETAIL":  # whose wrapper has no splitting, and knows fewer types
        splits(rank, size)
        options()
        coalescing(size)
        reductions(rank, size)
        results_within_inputs(rank, size)
        tensors_that_share_memory(size)
        report["late"] = work_objects(rank, size)
        report["monitored_barrier"] = timeouts(size)
    several_back_ends(size)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
