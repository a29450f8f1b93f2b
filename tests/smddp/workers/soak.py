"""One rank of the soak: `soak.py SEED OPERATIONS`. Random calls on random groups, every result checked.

All ranks draw the same numbers from the seed, so they agree on every call without talking.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)
# Seven values, so that sums over a few ranks are exact in every type.
PATTERN = torch.arange(1 << 21) % 7
MOST_GROUPS = 4
# A part of the soak during which caches, pools and lazily made threads may still grow.
WARM_UP = 0.2


@dataclass
class Group:
    """A process group and its ranks, in order."""

    ranks: list[int]
    handle: Any

    @property
    def me(self) -> int:
        return self.ranks.index(dist.get_rank())


class Soak:
    """The state that all ranks have in common: groups and the source of chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.world = Group(list(range(self.size)), dist.group.WORLD)
        self.groups: list[Group] = []
        self.made = 0
        self.pending: list[tuple[Any, Any]] = []

    def step(self) -> None:
        if self.random.random() < 0.002:
            self.change_groups()
        group = self.random.choice([self.world, self.world, *self.groups])
        call = getattr(self, self.random.choice(CALLS))
        dtype = self.random.choice(DTYPES)
        count = self.count()
        root, asynchronous = self.random.choice(group.ranks), self.random.random() < 0.3
        if self.rank in group.ranks:
            work, check = call(group, dtype, count, root, asynchronous)
            self.pending.append((work, check))
        # Several in flight, waited for in the order of their issue.
        if self.random.random() < 0.5 or len(self.pending) > 8:
            self.settle()

    def count(self) -> int:
        """Elements: small ones mostly, now and then some megabytes, and none at all."""
        if self.random.random() < 0.02:
            return 0
        largest = 21 if self.random.random() < 0.01 else 13
        return int(2 ** self.random.uniform(0, largest))

    def settle(self) -> None:
        for work, check in self.pending:
            if work is not None:
                work.wait()
            check()
        self.pending.clear()

    def change_groups(self) -> None:
        """Destroys a group or makes one; every rank takes part in making, as torch asks."""
        self.settle()
        if self.groups and (len(self.groups) == MOST_GROUPS or self.random.random() < 0.5):
            self.destroy(self.groups.pop(self.random.randrange(len(self.groups))))
            return
        ranks = sorted(self.random.sample(range(self.size), self.random.randint(1, self.size)))
        self.groups.append(Group(ranks, dist.new_group(ranks, timeout=timedelta(seconds=60))))
        self.made += 1

    def destroy(self, group: Group) -> None:
        if self.rank in group.ranks:
            dist.destroy_process_group(group.handle)

    def destroy_all(self) -> None:
        self.settle()
        while self.groups:
            self.destroy(self.groups.pop())
        gc.collect()

    def all_reduce(self, group: Group, dtype: torch.dtype, count: int, root: int, asynchronous: bool) -> Any:
        tensor = pattern(count, dtype) + group.me
        work = dist.all_reduce(tensor, group=group.handle, async_op=asynchronous)
        size = len(group.ranks)
        return work, lambda: equal(tensor, pattern(count, dtype) * size + size * (size - 1) // 2)

    def maximum(self, group: Group, dtype: torch.dtype, count: int, root: int, asynchronous: bool) -> Any:
        tensor = pattern(count, dtype) + group.me
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group.handle, async_op=asynchronous)
        return work, lambda: equal(tensor, pattern(count, dtype) + len(group.ranks) - 1)

    def broadcast(self, group: Group, dtype: torch.dtype, count: int, root: int, asynchronous: bool) -> Any:
        tensor = pattern(count, dtype) + self.rank
        work = dist.broadcast(tensor, root, group=group.handle, async_op=asynchronous)
        return work, lambda: equal(tensor, pattern(count, dtype) + root)

    def all_gather(self, group: Group, dtype: torch.dtype, count: int, root: int, asynchronous: bool) -> Any:
        outs = [torch.empty(count, dtype=dtype) for _ in group.ranks]
        work = dist.all_gather(outs, pattern(count, dtype) + self.rank, group=group.handle, async_op=asynchronous)

        def check() -> None:
            for rank, out in zip(group.ranks, outs, strict=True):
                equal(out, pattern(count, dtype) + rank)

        return work, check

    def all_gather_into_tensor(
        self, group: Group, dtype: torch.dtype, count: int, root: int, asynchronous: bool
    ) -> Any:
        whole = torch.empty(count * len(group.ranks), dtype=dtype)
        mine = pattern(count, dtype) + self.rank
        work = dist.all_gather_into_tensor(whole, mine, group=group.handle, async_op=asynchronous)
        return work, lambda: equal(whole, torch.cat([pattern(count, dtype) + rank for rank in group.ranks]))

    def reduce_scatter(self, group: Group, dtype: torch.dtype, count: int, root: int, asynchronous: bool) -> Any:
        size = len(group.ranks)
        whole = torch.cat([pattern(count, dtype) + part for part in range(size)])
        out = torch.empty(count, dtype=dtype)
        work = dist.reduce_scatter_tensor(out, whole, group=group.handle, async_op=asynchronous)
        return work, lambda: equal(out, (pattern(count, dtype) + group.me) * size)

    def all_to_all(self, group: Group, dtype: torch.dtype, count: int, root: int, asynchronous: bool) -> Any:
        size = len(group.ranks)
        count = min(count, 2000)
        whole = torch.cat([pattern(count, dtype) + 4 * group.me + part for part in range(size)])
        out = torch.empty_like(whole)
        work = dist.all_to_all_single(out, whole, group=group.handle, async_op=asynchronous)
        expected = [pattern(count, dtype) + 4 * other + group.me for other in range(size)]
        return work, lambda: equal(out, torch.cat(expected))

    def barrier(self, group: Group, dtype: torch.dtype, count: int, root: int, asynchronous: bool) -> Any:
        return dist.barrier(group=group.handle, async_op=asynchronous), lambda: None


CALLS = (
    *("all_reduce",) * 4,
    "maximum",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)


def pattern(count: int, dtype: torch.dtype) -> torch.Tensor:
    return PATTERN[:count].to(dtype)


def equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(found, expected), (found, expected)


def resources() -> dict[str, int]:
    """What must not grow: of the process, with no group but the first.

    Memory is the process's own, after the allocator gave back what nothing uses: how much it keeps is chance.
    """
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "kib": int(fields["RssAnon"].split()[0]),
        "threads": int(fields["Threads"]),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "shared_mappings": sum("smddp" in line for line in maps),
        "names_in_shm": sum(path.name.startswith("smddp-") for path in Path("/dev/shm").iterdir()),
    }


def main() -> None:
    seed, operations = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("smddp", timeout=timedelta(seconds=60))
    soak = Soak(seed)
    start = time.monotonic()
    for _ in range(int(operations * WARM_UP)):
        soak.step()
    soak.destroy_all()
    dist.barrier()
    before = resources()
    for _ in range(operations - int(operations * WARM_UP)):
        soak.step()
    soak.destroy_all()
    dist.barrier()
    after = resources()
    seconds = round(time.monotonic() - start, 1)
    dist.destroy_process_group()
    print(json.dumps({"before": before, "after": after, "groups": soak.made, "seconds": seconds}))


if __name__ == "__main__":
    main()
