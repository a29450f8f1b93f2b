"""Synchronous calls, which run on the caller's thread, among asynchronous ones, which do not, and inside callbacks."""

from __future__ import annotations

import json
from datetime import timedelta

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist


def mixed(turns: int) -> int:
    """Sizes differ from call to call: were two calls exchanged on one rank, the ranks' headers would not match."""
    size = dist.get_world_size()
    works, tensors = [], []
    for turn in range(turns):
        tensor = torch.full((turn % 97 + 1,), float(turn))
        tensors.append(tensor)
        if (turn * 7 + dist.get_rank()) % 3:  # not the same choice on every rank
            works.append(dist.all_reduce(tensor, async_op=True))
        else:
            dist.all_reduce(tensor)
            assert bool((tensor == turn * size).all())
    for work in works:
        work.wait()
    return sum(bool((tensor == turn * size).all()) for turn, tensor in enumerate(tensors))


def call_in_callback() -> float:
    """A callback makes a synchronous call while its own operation's rank waits for the callback's result."""
    work = dist.all_reduce(torch.ones(3), async_op=True)

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = future.value()[0].clone()
        dist.all_reduce(tensor)
        return tensor

    return float(work.get_future().then(again).wait()[0])


def future_of_a_synchronous_call() -> list[float]:
    """The work of a call that is done when it returns: complete, with a future made afterwards."""
    assert dist.group.WORLD is not None
    options = dist.AllreduceOptions()
    options.asyncOp = False
    work = dist.group.WORLD.allreduce([torch.full((2,), 3.0)], options)
    assert work.is_completed()
    future = work.get_future()
    assert future.done()
    seen: list[float] = []
    future.then(lambda done: seen.extend(done.value()[0].tolist()))
    return seen


def main() -> None:
    dist.init_process_group("smddp", timeout=timedelta(seconds=30))
    report = {"right": mixed(3000), "callback": call_in_callback(), "future": future_of_a_synchronous_call()}
    print(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
