"""A rank of a library that is reached through torch: smddp, gloo, DeepSpeed's shared-memory operation, an MPI.

    torch_worker.py smddp|gloo|deepspeed|mpi

Obeys the driver's commands until the channel closes; the protocol is described in ``harness/job.py``. The clock runs
around calls as a training script makes them, Python included.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from channel import Payload, cpu_seconds, leave, serve

Call = Callable[[], object]


class Exercise:
    """One operation on float32 tensors of one size; `size` bytes are the whole message."""

    def __init__(self, name: str, size: int, all_reduce: Callable[[torch.Tensor], object]) -> None:
        self.name = name
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        count = size // 4
        self.part = count // self.ranks
        main = self.main = torch.zeros(count)
        small = self.small = torch.zeros(self.part if name in ("all_gather", "reduce_scatter") else 0)
        # Since torch 2.13 these are the names; the older ones warn at every call.
        all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        # Not by way of self: with that cycle the tensors would be there until a garbage collection, and what a library
        # keeps for them. With 12 libraries of 4 ranks each, 24 GB of memory were not enough.
        calls: dict[str, Call] = {
            "all_reduce": lambda: all_reduce(main),
            "all_gather": lambda: all_gather(main, small),
            "reduce_scatter": lambda: reduce_scatter(small, main),
            "broadcast": lambda: dist.broadcast(main, 0),
        }
        self.run = calls[name]

    def fill(self, payload: Payload) -> None:
        if self.name == "all_gather":
            self.main.zero_()
            payload.fill(self.small, self.rank * self.part, self.rank)
        elif self.name == "broadcast" and self.rank != 0:
            self.main.zero_()
        else:
            payload.fill(self.main, 0, self.rank)

    def zero(self) -> None:
        self.main.zero_()
        self.small.zero_()

    def wrong(self, payload: Payload, roundoff: float) -> int:
        if self.name == "all_reduce":
            return payload.wrong_in_sum(self.main, 0, self.ranks, roundoff)
        if self.name == "reduce_scatter":
            return payload.wrong_in_sum(self.small, self.rank * self.part, self.ranks, roundoff)
        if self.name == "broadcast":
            return payload.wrong_in_copy(self.main, 0, 0)
        parts = torch.split(self.main, self.part)
        return sum(payload.wrong_in_copy(part, rank * self.part, rank) for rank, part in enumerate(parts))


def timed(call: Call, iterations: int) -> tuple[float, float]:
    """When the calls began and ended, by the clock that all processes of the machine share."""
    start = time.monotonic()
    for _ in range(iterations):
        call()
    return start, time.monotonic()


class Server:
    """Carries out the driver's commands."""

    def __init__(self, library: str) -> None:
        self.payload = Payload()
        self.all_reduce = _all_reduce_of(library)

    def measure(self, words: list[str]) -> str:
        name, size, roundoff = words[0], int(words[1]), float(words[2])
        iterations, batches = int(words[3]), int(words[4])
        again, meet_once = words[5] == "1", words[6] == "1"
        exercise = Exercise(name, size, self.all_reduce)
        wrong = self._checked(exercise, roundoff)
        exercise.zero()
        # What a library sets up the first times that it sees a buffer is no part of an operation on one that lives for
        # long, as gradients do.
        exercise.run()
        ready = torch.zeros(16)
        clock: list[float] = []
        cpu = 0.0
        for batch in range(batches):
            if batch == 0 or not meet_once:
                self.all_reduce(ready)
            before = cpu_seconds()
            clock += timed(exercise.run, iterations)
            cpu += cpu_seconds() - before
        if again:
            wrong += self._checked(exercise, roundoff)
        per_operation = cpu / (batches * iterations) if batches else 0.0
        return f"ok {wrong} {per_operation:.9g} " + " ".join(f"{seconds:.9f}" for seconds in clock)

    def _checked(self, exercise: Exercise, roundoff: float) -> int:
        exercise.fill(self.payload)
        exercise.run()
        return exercise.wrong(self.payload, roundoff)

    def wait(self, words: list[str]) -> str:
        """Rank 0 comes late to an all-reduce: what do the others burn meanwhile?"""
        data = torch.zeros(int(words[0]) // 4)
        self.all_reduce(torch.zeros(16))
        cpu, start = cpu_seconds(), time.perf_counter()
        if dist.get_rank() == 0:
            time.sleep(float(words[1]))
        self.all_reduce(data)
        return f"ok 0 {cpu_seconds() - cpu:.9g} {time.perf_counter() - start:.9g}"


def _start_mpi() -> None:
    """An MPI as a back end: its launcher says which rank this is."""
    sys.path.insert(0, os.environ["BENCH_TORCH_MPI"])
    import torch_mpi  # type: ignore[import-not-found]

    rank, ranks = torch_mpi.start()
    dist.Backend.register_backend("mpi_here", torch_mpi.create, devices=["cpu"])
    meeting = f"file://{os.environ['BENCH_CHANNEL']}/store"
    dist.init_process_group("mpi_here", init_method=meeting, rank=rank, world_size=ranks)


def _all_reduce_of(library: str) -> Callable[[torch.Tensor], object]:
    """Brings the library up."""
    if library == "mpi":
        _start_mpi()
        return dist.all_reduce
    if library == "smddp":
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
    dist.init_process_group("smddp" if library == "smddp" else "gloo")
    if library != "deepspeed":
        return dist.all_reduce
    sys.path.insert(0, os.environ["BENCH_DEEPSPEED"])
    import deepspeed_shm  # type: ignore[import-not-found]

    deepspeed_shm.initialize(dist.get_world_size(), dist.get_rank())
    operation: Callable[[torch.Tensor], object] = torch.ops.deepspeed.inference_all_reduce_
    return operation


def main() -> None:
    torch.set_num_threads(1)
    library = sys.argv[1]
    server = Server(library)
    serve(dist.get_rank(), lambda verb, words: server.wait(words) if verb == "wait" else server.measure(words))
    dist.destroy_process_group()
    if library == "mpi":
        import torch_mpi

        torch_mpi.finish()
    leave()


if __name__ == "__main__":
    main()
