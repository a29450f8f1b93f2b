"""Times of all-reduce under different settings, on all ranks of the job together."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# One sample repeats the operation until it has taken about this long, at most so many times.
_SAMPLE_SECONDS = 0.03
_MOST_REPEATS = 2000


@dataclass(frozen=True)
class Measurement:
    """Settings, and by size in bytes the median of the rounds of the slowest rank's seconds for one all-reduce."""

    settings: dict[str, str]
    seconds: dict[int, float]

    @property
    def mean_seconds(self) -> float:
        """Geometric mean: each size counts the same, however long it takes."""
        return math.exp(statistics.mean(math.log(value) for value in self.seconds.values()))

    def as_json(self) -> dict[str, Any]:
        """For the table."""
        return {"settings": self.settings, "seconds": {str(size): value for size, value in self.seconds.items()}}

    def in_words(self) -> str:
        """``64 KiB 12.1 us, 1 MiB 90.3 us``."""
        return ", ".join(f"{in_words(size)} {value * 1e6:.1f} us" for size, value in self.seconds.items())


def measure(
    candidates: Sequence[dict[str, str]],
    sizes: Sequence[int],
    rounds: int,
    tell: Callable[[Measurement], None],
) -> list[Measurement]:
    """Time every candidate at every size; one result a candidate, told as soon as it is known.

    Each round makes a group anew for each candidate: with all of them at once, a container's /dev/shm would not do.
    """
    samples: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    results = []
    for turn in range(rounds):
        for index, settings in enumerate(candidates):
            with _group(settings) as group:
                for size in sizes:
                    samples[index][size].append(_sample(group, size))
            if turn == rounds - 1:
                seconds = {size: statistics.median(values) for size, values in samples[index].items()}
                results.append(Measurement(settings, seconds))
                tell(results[-1])
    return results


@contextmanager
def _group(settings: dict[str, str]) -> Iterator[Any]:
    """A group of all ranks with these settings. They are rank 0's to choose; the environment wins over everything."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        group = dist.new_group(backend="smddp")
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def _sample(group: Any, size: int) -> float:
    tensor = torch.zeros(size // 4)
    # The first touches all memory, the second tells how often to repeat.
    _slowest_seconds(group, tensor, 1)
    once = _slowest_seconds(group, tensor, 1)
    repeats = max(1, min(_MOST_REPEATS, int(_SAMPLE_SECONDS / once)))
    return _slowest_seconds(group, tensor, repeats)


def _slowest_seconds(group: Any, tensor: torch.Tensor, repeats: int) -> float:
    """Seconds for one operation on the slowest rank; the same number on every rank."""
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(tensor, group=group)
    seconds = torch.tensor([(time.perf_counter() - start) / repeats], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
    return seconds.item()


def in_words(count: int) -> str:
    """Bytes, as ``64 KiB`` or ``1 MiB``."""
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
