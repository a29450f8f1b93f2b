"""Every operation of smddp against gloo and against sums computed here; reports path and number of comparisons."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from smdistributed.dataparallel.exceptions import SMDDPUsageError
from smdistributed.dataparallel.torch import torch_smddp

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COUNTS = (0, 1, 1000, 70_001)
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
torch_dist: Any = dist  # with the names that it does not export
# Under the names that they had before torch 1.13, if need be.
all_gather_into_tensor: Any = getattr(dist, "all_gather_into_tensor", None) or torch_dist._all_gather_base
reduce_scatter_tensor: Any = getattr(dist, "reduce_scatter_tensor", None) or torch_dist._reduce_scatter_base
# Against gloo, which sums in another order and rounds half precision at every step.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def inputs(dtype: torch.dtype, count: int, ranks: int) -> list[torch.Tensor]:
    """What each rank contributes; every rank can compute it."""
    generator = torch.Generator().manual_seed(count)
    if dtype in FLOATS:
        return [(torch.rand(count, generator=generator) + 0.5).to(dtype) for _ in range(ranks)]
    return [torch.randint(0, 4, (count,), generator=generator).to(dtype) for _ in range(ranks)]


def combined(one: torch.Tensor, other: torch.Tensor, op: object) -> torch.Tensor:
    if op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        return one + other
    if op == dist.ReduceOp.PRODUCT:
        return one * other
    return torch.minimum(one, other) if op == dist.ReduceOp.MIN else torch.maximum(one, other)


def reduced(tensors: list[torch.Tensor], op: object, in_pairs: bool) -> torch.Tensor:
    """The definition: in rank order or in pairs, half precision in float32, rounded once."""
    dtype = tensors[0].dtype
    parts = [tensor.to(torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype) for tensor in tensors]
    while in_pairs and len(parts) > 1:
        parts = [combined(first, second, op) for first, second in zip(parts[::2], parts[1::2], strict=True)]
    total = parts[0]
    for other in parts[1:]:
        total = combined(total, other, op)
    if op == dist.ReduceOp.AVG:
        total = torch.div(total, len(tensors), rounding_mode=None if dtype in FLOATS else "trunc")
    return total.to(dtype)


def known_to(group: dist.ProcessGroup) -> list[torch.dtype]:
    """The types that gloo adds in this release of torch: int16 in none, bfloat16 in later ones."""
    known = []
    for dtype in FLOATS + INTEGERS:
        with contextlib.suppress(RuntimeError):
            dist.all_reduce(torch.zeros(1, dtype=dtype), group=group)
            known.append(dtype)
    return known


class Checks:
    """Compares, and counts that it did."""

    def __init__(self, gloo: dist.ProcessGroup, exact: bool, in_pairs: bool) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.gloo = gloo
        self.known_to_gloo = known_to(gloo)
        self.exact = exact
        self.in_pairs = in_pairs
        self.done = 0

    def same(self, found: torch.Tensor, expected: torch.Tensor, exact: bool = True, what: object = "") -> None:
        self.done += 1
        if exact:
            assert torch.equal(found, expected), (what, found, expected)
        else:
            tolerance = TOLERANCE[found.dtype]
            torch.testing.assert_close(
                found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
            )

    def reductions(self) -> None:
        for dtype in FLOATS + INTEGERS:
            for count in COUNTS:
                own = inputs(dtype, count, self.size)
                for op in OPS:
                    what = (dtype, count, op)
                    exact = self.exact or dtype in INTEGERS
                    expected = reduced(own, op, self.in_pairs)
                    found = own[self.rank].clone()
                    dist.all_reduce(found, op=op)
                    self.same(found, expected, exact, what)
                    if dtype in self.known_to_gloo and op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
                        theirs = own[self.rank].clone()
                        dist.all_reduce(theirs, op=op, group=self.gloo)
                        self.same(found, theirs, dtype in INTEGERS, what)
                    shard = torch.empty_like(found)
                    dist.reduce_scatter(shard, [own[self.rank].roll(r) for r in range(self.size)], op=op)
                    self.same(shard, expected.roll(self.rank), exact, what)

    def movements(self) -> None:
        float8 = getattr(torch, "float8_e4m3fn", torch.bool)  # torch 2.1
        for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.complex64, float8):
            for count in COUNTS:
                own = [tensor.to(dtype) for tensor in inputs(torch.float32, count, self.size)]
                bits = [tensor.view(torch.uint8) for tensor in own]
                outs = [torch.empty_like(own[0]) for _ in own]
                dist.all_gather(outs, own[self.rank])
                for out, expected in enumerate(bits):
                    self.same(outs[out].view(torch.uint8), expected, what=(dtype, count))
                whole = torch.empty(count * self.size, dtype=dtype)
                all_gather_into_tensor(whole, own[self.rank])
                self.same(whole.view(torch.uint8), torch.cat(bits), what=(dtype, count))
                for root in range(self.size):
                    tensor = own[self.rank].clone()
                    dist.broadcast(tensor, root)
                    self.same(tensor.view(torch.uint8), bits[root], what=(dtype, count, root))

    def layouts(self) -> None:
        """Tensors whose elements do not lie one after another, of several dimensions, and parts of larger ones."""
        base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5) + self.rank
        total = base * self.size + sum(range(self.size)) - self.rank * self.size
        views: list[Callable[[torch.Tensor], torch.Tensor]] = [
            lambda t: t.transpose(1, 3),
            lambda t: t[:, ::2],
            lambda t: t.contiguous(memory_format=torch.channels_last),
            lambda t: t[0, 0, 0, 0],
        ]
        for view in views:
            tensor = view(base.clone())
            dist.all_reduce(tensor)
            self.same(tensor, view(total))
            tensor = view(base.clone())
            outs = [
                torch.zeros_like(tensor).mT if tensor.dim() > 1 else torch.zeros_like(tensor) for _ in range(self.size)
            ]
            dist.all_gather([out.mT if out.dim() > 1 else out for out in outs], tensor)
            self.same(outs[-1].mT if tensor.dim() > 1 else outs[-1], tensor - self.rank + self.size - 1)
        inside = torch.zeros(10)
        inside[3:7] = self.rank + 1
        dist.all_reduce(inside[3:7])
        self.same(inside, torch.tensor([0.0] * 3 + [self.size * (self.size + 1) / 2] * 4 + [0.0] * 3))
        whole = torch.arange(self.size * 6, dtype=torch.float64).reshape(6, self.size).t()
        shard = torch.empty(6, dtype=torch.float64)
        reduce_scatter_tensor(shard, whole)
        self.same(shard, whole[self.rank] * self.size)
        leaf = torch.ones(5, requires_grad=True)
        dist.all_reduce(leaf.data)
        self.same(leaf.detach(), torch.full((5,), float(self.size)))
        with torch.inference_mode():
            tensor = torch.ones(3, 4).t()
            dist.all_reduce(tensor)
            self.same(tensor, torch.full((4, 3), float(self.size)))

    def bits_and_pairs(self) -> None:
        """Bitwise reductions of integers and bools, averages that would wrap, NaN, complex sums."""
        rank, size = self.rank, self.size
        for dtype in (torch.uint8, torch.int32, torch.int64):
            own = [torch.tensor([1 << r, 6, 7 * r]).to(dtype) for r in range(size)]
            for op, combine in (
                (dist.ReduceOp.BAND, torch.bitwise_and),
                (dist.ReduceOp.BOR, torch.bitwise_or),
                (dist.ReduceOp.BXOR, torch.bitwise_xor),
            ):
                found = own[rank].clone()
                dist.all_reduce(found, op=op)
                self.same(found, functools.reduce(combine, own), what=(dtype, op))
        flags = [torch.tensor([True, r == 0, False]) for r in range(size)]
        for op, expected in (
            (dist.ReduceOp.SUM, [True, True, False]),
            (dist.ReduceOp.BAND, [True, size == 1, False]),
            (dist.ReduceOp.BXOR, [size % 2 == 1, True, False]),
        ):
            found = flags[rank].clone()
            dist.all_reduce(found, op=op)
            self.same(found, torch.tensor(expected), what=op)
        for dtype in INTEGERS:
            limits = torch.iinfo(dtype)
            found = torch.tensor([limits.max, limits.min], dtype=dtype)
            dist.all_reduce(found, op=dist.ReduceOp.AVG)
            self.same(found, torch.tensor([limits.max, limits.min], dtype=dtype), what=dtype)
        for holder in range(size):
            found = torch.tensor([float("nan") if rank == holder else 1.0, 2.0])
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
            self.same(found.isnan(), torch.tensor([True, False]), what=holder)
        pairs = torch.full((1001,), complex(rank, 1), dtype=torch.complex64)
        dist.all_reduce(pairs)
        self.same(pairs, torch.full((1001,), complex(sum(range(size)), size), dtype=torch.complex64))

    def coalesced(self) -> None:
        """Tensors that share a buffer and tensors that do not, of several types and layouts, in one call."""
        assert dist.group.WORLD is not None
        shapes: list[tuple[int, ...]] = [(3,), (), (0,), (4, 5), (100_000,), (7,), (60_000,), (2, 3), (50_000,)]
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            tensors = [torch.full(shape, self.rank + i).to(dtype) for i, shape in enumerate(shapes)]
            tensors.append(torch.ones(3, 4).t())
            dist.group.WORLD.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions()).wait()
            for i, shape in enumerate(shapes):
                expected = torch.full(shape, sum(r + i for r in range(self.size))).to(dtype)
                self.same(tensors[i], expected, what=(dtype, shape))
            self.same(tensors[-1], torch.full((4, 3), float(self.size)))

    def fallbacks(self) -> None:
        """What gloo carries out within the group."""
        rank, size = self.rank, self.size
        sparse = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (size,))
        dist.all_reduce(sparse)
        self.same(sparse.to_dense(), torch.ones(size))
        total = torch.tensor([float(rank)])
        dist.reduce(total, 0)
        self.same(total, torch.tensor([float(sum(range(size)))])) if rank == 0 else None
        gathered = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
        dist.gather(torch.tensor([float(rank)]), gathered)
        self.same(torch.cat(gathered), torch.arange(float(size))) if gathered else None
        part = torch.zeros(1)
        dist.scatter(part, [torch.tensor([r + 5.0]) for r in range(size)] if rank == 0 else None)
        self.same(part, torch.tensor([rank + 5.0]))
        swapped = torch.zeros(size)
        dist.all_to_all_single(swapped, torch.arange(float(size)) + 10 * rank)
        self.same(swapped, torch.arange(float(size)) * 10 + rank)
        objects: list[object] = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": r} for r in range(size)], objects
        if size > 1 and rank < 2:
            message = torch.tensor([42.0 if rank == 0 else 0.0])
            dist.send(message, 1) if rank == 0 else dist.recv(message, 0)
            self.same(message, torch.tensor([42.0]))

    def asynchronous(self) -> None:
        """Several in flight; futures; and a callback that itself waits for operations, as PowerSGD's does."""
        tensors = [torch.full((1000,), float(i)) for i in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        for i, tensor in enumerate(tensors):
            self.same(tensor, torch.full((1000,), float(i * self.size)))

        def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            result = future.value()[0]
            dist.all_reduce(result)
            dist.all_reduce(result, async_op=True).get_future().wait()
            return result

        # The second may be issued before, during or after the first's callback: ranks must agree on the order.
        chains = [dist.all_reduce(torch.ones(10), async_op=True).get_future().then(again) for _ in range(2)]
        for chain in chains:
            self.same(chain.wait(), torch.full((10,), float(self.size**3)))
        dist.barrier()

    def groups(self) -> None:
        """Subgroups with other ranks and another back end, beside one another."""
        odd = dist.new_group(list(range(1, self.size, 2)) or [0])
        everyone = dist.new_group(timeout=timedelta(seconds=30))
        if self.rank % 2 == 1:
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=odd)
            self.same(tensor, torch.full((3,), float(self.size // 2)))
        elif self.size > 1:
            self.tells_that_it_is_no_member(odd)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=everyone)
        self.same(tensor, torch.full((3,), float(self.size)))
        dist.destroy_process_group(everyone)

    def tells_that_it_is_no_member(self, group: dist.ProcessGroup) -> None:
        for ask in (torch_smddp.path, torch_smddp.stats, torch_smddp.flight_recorder, torch_smddp.abort):
            try:
                ask(group)
            except SMDDPUsageError as error:
                said = str(error)
            else:
                said = "nothing"
            assert "not a member" in said, f"{ask}: {said}"
            self.done += 1


def main() -> None:
    dist.init_process_group("smddp", timeout=timedelta(seconds=40))
    path = torch_smddp.path()
    # Partial sums of a host are added to those of others: another, equally fixed order.
    in_pairs = path.startswith("flat") and dist.get_world_size().bit_count() == 1
    checks = Checks(dist.new_group(backend="gloo"), exact=not path.startswith("hierarchical"), in_pairs=in_pairs)
    checks.reductions()
    checks.movements()
    checks.layouts()
    checks.bits_and_pairs()
    checks.coalesced()
    checks.fallbacks()
    checks.asynchronous()
    checks.groups()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"path": path, "checks": checks.done}))


if __name__ == "__main__":
    main()
