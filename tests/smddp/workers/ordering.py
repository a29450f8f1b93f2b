"""Synchronous calls, which run on the caller's thread, among asynchronous ones, which do not, and inside callbacks."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from datetime import timedelta

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist
from smdistributed.dataparallel import exceptions


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


def calls_in_callbacks(turns: int) -> int:
    """As PowerSGD's: while the program goes on, callbacks call, and wait, each at its own pace on each rank.

    Sizes differ from call to call: see mixed().
    """
    pace = random.Random(dist.get_rank())
    size = dist.get_world_size()

    def reduced(turn: int, step: int) -> torch.Tensor:
        return torch.full((turn * 4 + step + 1,), float(turn))

    def right(tensor: torch.Tensor, turn: int, step: int) -> bool:
        return tensor.tolist() == [float(turn * size)] * (turn * 4 + step + 1)

    def chained(turn: int) -> torch.futures.Future[bool]:
        def second(future: torch.futures.Future[list[torch.Tensor]]) -> torch.futures.Future[list[torch.Tensor]]:
            assert right(future.value()[0], turn, 0)
            time.sleep(pace.choice((0, 0, 0.001)))
            work = dist.all_reduce(reduced(turn, 1), async_op=True)
            if turn % 2:
                work.wait()
            result: torch.futures.Future[list[torch.Tensor]] = work.get_future()
            return result

        def third(future: torch.futures.Future[torch.futures.Future[list[torch.Tensor]]]) -> bool:
            assert right(future.value().wait()[0], turn, 1)
            tensor = reduced(turn, 2)
            dist.all_reduce(tensor)
            return right(tensor, turn, 2)

        future: torch.futures.Future[list[torch.Tensor]] = dist.all_reduce(reduced(turn, 0), async_op=True).get_future()
        time.sleep(pace.choice((0, 0, 0.001)))
        return future.then(second).then(third)

    return sum(torch.futures.wait_all([chained(turn) for turn in range(turns)]))


def wait_for_a_later_call() -> str:
    """A callback that waits for what the program issued after its own operation is told so, and nothing hangs."""
    later: list[dist.Work] = []
    issued = threading.Event()

    def waits(_: torch.futures.Future[list[torch.Tensor]]) -> str:
        issued.wait()
        try:
            later[0].wait()
        except exceptions.SMDDPUsageError as error:
            return str(error)
        return "it did wait"

    if dist.get_rank() > 0:
        time.sleep(0.5)  # rank 0 attaches the callback before the operation can be done
    first = dist.all_reduce(torch.ones(3), async_op=True)
    told = first.get_future().then(waits) if dist.get_rank() == 0 else None
    later.append(dist.all_reduce(torch.ones(3), async_op=True))
    issued.set()
    later[0].wait()
    return told.wait() if told else ""


def call_in_callback() -> float:
    """A callback makes a synchronous call while its own operation's rank waits for the callback's result."""
    work = dist.all_reduce(torch.ones(3), async_op=True)

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = future.value()[0].clone()
        dist.all_reduce(tensor)
        return tensor

    return float(work.get_future().then(again).wait()[0])


def future_of_a_synchronous_call() -> list[float]:
    """The work of a call that is done: complete, with a future made afterwards."""
    assert dist.group.WORLD is not None
    options = dist.AllreduceOptions()
    with contextlib.suppress(AttributeError):
        options.asyncOp = False  # until torch 2.7 an all-reduce does not say
    work = dist.group.WORLD.allreduce([torch.full((2,), 3.0)], options)
    work.wait()
    future = work.get_future()
    assert future.done()
    seen: list[float] = []
    future.then(lambda done: seen.extend(done.value()[0].tolist()))
    return seen


def main() -> None:
    dist.init_process_group("smddp", timeout=timedelta(seconds=30))
    report = {
        "right": mixed(3000),
        "callbacks": calls_in_callbacks(200),
        "told": wait_for_a_later_call(),
        "callback": call_in_callback(),
        "future": future_of_a_synchronous_call(),
    }
    print(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
