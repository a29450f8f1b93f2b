"""Replicas of a model: averages of gradients, accumulation, hooks, join, one order (statements 15, 21, 28, C11)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from smp_jobs import run_ranks
from torch import nn

PIPELINE = {"partitions": 2, "microbatches": 2, "ddp": True, "auto_partition": False, "default_partition": 0}
ALONE = {"partitions": 1, "microbatches": 2, "ddp": True}


class Net(nn.Module):
    """Re-uses a module, and leaves one unused by what the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.second = nn.Linear(5, 5)
        self.rare = nn.Linear(5, 5)
        self.never = nn.Linear(5, 5)
        self.register_buffer("scale", torch.ones(()))
        self.scale: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.second(torch.tanh(self.first(x)) * self.scale)
        if x[0, 0] > 0:
            h = self.rare(h)
        y: torch.Tensor = self.second(h)
        return y.square().mean()


def batches(count: int, replica: int) -> list[torch.Tensor]:
    """Batches of 4; the replicas differ, and so do the modules that they use."""
    generator = torch.Generator().manual_seed(7 + replica)
    made = [torch.randn(4, 3, generator=generator) for _ in range(count)]
    for index, batch in enumerate(made):
        batch[:, 0] = 1.0 if (index + replica) % 3 == 0 else -1.0
    return made


def expected(steps: int, replicas: int, every: int = 1) -> dict[str, Any]:
    """The weights of one process that sees all replicas' batches."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = [batches(steps * every, replica) for replica in range(replicas)]
    for step in range(steps):
        optimizer.zero_grad()
        for batch in (own[step * every + part] for part in range(every) for own in data):
            for piece in batch.chunk(2):
                (net(piece) / 2 / replicas).backward()
        optimizer.step()
    return net.state_dict()


def start(config: dict[str, Any], **options: Any) -> tuple[Any, Any, Any, Any]:
    import smdistributed.modelparallel.torch as smp

    smp.init(config)
    torch.manual_seed(smp.rdp_rank())  # replicas begin with different weights: the first's count
    net = Net()
    if smp.pp_size() > 1:
        smp.set_partition(net.second, 1)
        smp.set_partition(net.never, 1)
    with torch.no_grad():
        net.scale.fill_(1.0 + smp.rdp_rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    model = smp.DistributedModel(net, **options)

    @smp.step
    def train(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x)
        model.backward(loss)
        return loss

    return smp, model, optimizer, train


def averaged(config: dict[str, Any], steps: int, options: dict[str, Any], every: int = 1) -> tuple[Any, Any]:
    smp, model, optimizer, train = start(config, **{key: value for key, value in options.items() if key != "no_sync"})
    data = batches(steps * every, smp.rdp_rank())
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(every):
            held = options.get("no_sync") and part < every - 1
            with model.no_sync() if held else contextlib.nullcontext():
                train(model, data[step * every + part])
        optimizer.step()
    grad = {name: p.grad is None for name, p in model.local_named_parameters()}
    return model.state_dict(), grad


def same(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert state.keys() == other.keys()
    for name, value in other.items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize(("config", "size"), [(ALONE, 2), (PIPELINE, 4)], ids=["2 replicas", "2 x 2"])
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 0.0001}, {"overlapping_allreduce": False}], ids=str)
def test_statement_21_gradients_are_averaged(config: dict[str, Any], size: int, options: dict[str, Any]) -> None:
    for rank in run_ranks(averaged, size, config, 6, options):
        state, missing = rank.report
        same(state, expected(6, 2))
        assert {name for name, none in missing.items() if none} <= {"never.weight", "never.bias"}


@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}, {"no_sync": True}])
def test_gradients_are_accumulated_over_several_passes(options: dict[str, Any]) -> None:
    for rank in run_ranks(averaged, 2, ALONE, 3, options, 2):
        same(rank.report[0], expected(3, 2, every=2))


def hooked(config: dict[str, Any]) -> tuple[Any, int]:
    smp, model, optimizer, train = start(config)
    calls: list[int] = []

    def halve(state: Any, bucket: Any) -> Any:
        calls.append(bucket.buffer().numel())
        assert state == "mine"
        assert sum(g.numel() for g in bucket.gradients()) == sum(p.numel() for p in bucket.parameters())
        buffer = bucket.buffer() / (smp.dp_size() * smp.num_microbatches())
        work = dist.all_reduce(buffer, group=smp.get_dp_process_group(), async_op=True)
        return work.get_future().then(lambda _: buffer)

    model.register_comm_hook("mine", halve)
    for batch in batches(6, smp.rdp_rank()):
        optimizer.zero_grad()
        train(model, batch)
        optimizer.step()
    return model.state_dict(), len(calls)


def test_a_communication_hook_averages_over_replicas_and_micro_batches() -> None:
    for rank in run_ranks(hooked, 2, ALONE):
        state, calls = rank.report
        same(state, expected(6, 2))
        assert calls >= 6


def joined(config: dict[str, Any]) -> tuple[Any, Any]:
    smp, model, optimizer, train = start(config)
    own = batches(6, smp.rdp_rank())[: 6 - 2 * smp.rdp_rank()]
    with model.join():
        for batch in own:
            optimizer.zero_grad()
            train(model, batch)
            optimizer.step()
    return model.state_dict(), smp.rank()


@pytest.mark.parametrize(("config", "size"), [(ALONE, 2), (PIPELINE, 4)], ids=["2 replicas", "2 x 2"])
def test_statement_15_join_lets_a_replica_run_out_of_batches(config: dict[str, Any], size: int) -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = [batches(6, 0), batches(6, 1)[:4]]
    for step in range(6):
        optimizer.zero_grad()
        for own in data:
            for piece in own[step].chunk(2) if step < len(own) else ():
                (net(piece) / 4).backward()
        optimizer.step()
    for rank in run_ranks(joined, size, config):
        same(rank.report[0], net.state_dict())


def ordered(config: dict[str, Any]) -> list[Any]:
    smp, model, optimizer, train = start(config)
    turns: list[Any] = []
    scheduler = smp.state.server.scheduler
    take = scheduler._take

    def taken() -> Any:
        task = take()
        if task is not None:
            turns.append((task.label, task.resumptions))
        return task

    scheduler._take = taken
    for _ in range(4):
        optimizer.zero_grad()
        train(model, torch.full((8, 3), -1.0))
        optimizer.step()
    return turns


def test_statement_28_requests_run_in_one_order_on_all_replicas() -> None:
    config = {**PIPELINE, "microbatches": 4, "deterministic_server": True}
    first, second, third, fourth = (rank.report for rank in run_ranks(ordered, 4, config))
    assert len(first) > 4 * 4 * 3
    assert first == third  # ranks 0 and 2 are replicas of one another, so are 1 and 3
    assert second == fourth
