"""DistributedOptimizer in float32: the script's optimizer over partitions and replicas, whole and sharded state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn

PIPELINE = '{"partitions": 2, "microbatches": 2, "auto_partition": false, "default_partition": 0}'
REPLICAS = '{"partitions": 2, "microbatches": 2, "auto_partition": false, "default_partition": 0, "ddp": true%s}'
SHARDED = ', "shard_optimizer_state": true'


def build(parts: Any = None) -> nn.Sequential:
    """Eight layers' worth of odd sizes; the second half in partition 1 where `parts` is smp."""
    torch.manual_seed(0)
    first = [nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 7)]
    if parts is None:
        return nn.Sequential(*first, nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1))
    with parts.partition(1):
        second = [nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1)]
    return nn.Sequential(*first, *second)


def make(kind: str, model: nn.Sequential) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": list(model[:3].parameters()), "lr": 0.02},
        {"params": list(model[3:].parameters())},
    ]
    if kind == "adamw":
        return torch.optim.AdamW(groups, lr=0.01)
    if kind == "momentum":
        return torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    # Norms of whole parameters: it may not be cut.
    from smdistributed.modelparallel.torch.optimizers import FusedLAMB

    return FusedLAMB(groups, lr=0.01)


def batches(count: int, begin: int = 0) -> list[torch.Tensor]:
    return [torch.randn(8, 6, generator=torch.Generator().manual_seed(begin + index)) for index in range(count)]


def alone(kind: str, steps: int) -> dict[str, torch.Tensor]:
    """The weights after these steps in one process."""
    model = build()
    optimizer = make(kind, model)
    for batch in batches(steps):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class Job:
    """The same on ranks."""

    def __init__(self, kind: str, wrap_before: bool = False) -> None:
        import smdistributed.modelparallel.torch as smp

        smp.init()
        self.smp = smp
        plain = build(smp)
        built = make(kind, plain)
        self.plain = built
        if wrap_before:
            self.optimizer = smp.DistributedOptimizer(built)
        self.model = smp.DistributedModel(plain)
        if not wrap_before:
            self.optimizer = smp.DistributedOptimizer(built)

        @smp.step
        def train(model: Any, batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = model(batch).pow(2).mean()
            model.backward(loss)
            return loss

        self.train = train

    def run(self, steps: int, begin: int = 0) -> None:
        for batch in batches(steps, begin):
            self.optimizer.zero_grad()
            self.train(self.model, batch.chunk(self.smp.dp_size())[self.smp.dp_rank()])
            self.optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = self.model.state_dict()
        return found

    def state_bytes(self) -> int:
        return sum(
            value.numel() * value.element_size()
            for one in self.optimizer.state.values()
            for value in one.values()
            if isinstance(value, torch.Tensor) and value.dim() > 0
        )


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], rtol: float = 1e-5) -> bool:
    return found.keys() == expected.keys() and all(
        torch.allclose(found[name], expected[name], rtol=rtol, atol=1e-7) for name in expected
    )


def trained(kind: str, wrap_before: bool) -> dict[str, Any]:
    job = Job(kind, wrap_before)
    same = job.optimizer is job.plain
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 1, gamma=1.0)
    job.run(4)
    scheduler.step()
    return {
        "same": same,
        "kind": isinstance(job.optimizer, torch.optim.Optimizer),
        "weights": job.weights(),
        "local": job.optimizer.local_state_dict(),
        "full": job.optimizer.state_dict(),
        "bytes": job.state_bytes(),
    }


@pytest.mark.parametrize(("kind", "wrap_before"), [("adamw", False), ("momentum", True)])
def test_two_partitions_train_as_one_process(kind: str, wrap_before: bool) -> None:
    """Statements 4 and 5: the optimizer is built before wrapping, its step follows the step function."""
    reports = [one.report for one in run_ranks(trained, 2, kind, wrap_before, config=PIPELINE)]
    expected = alone(kind, 4)
    for report in reports:
        assert report["same"]
        assert report["kind"]
        assert equal(report["weights"], expected)
    first, second = (report["local"] for report in reports)
    assert first["_smp_is_partial"] is second["_smp_is_partial"] is True
    assert (sorted(first["state"]), sorted(second["state"])) == ([0, 1, 2, 3], [4, 5, 6, 7])
    for report in reports:
        full = report["full"]
        assert "_smp_is_partial" not in full
        assert list(full["state"]) == list(range(8))
        # The whole state is one of the plain optimizer.
        plain = make(kind, build())
        plain.load_state_dict(full)
        assert [group["params"] for group in full["param_groups"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def resumed(kind: str, partial: bool, when: str) -> dict[str, torch.Tensor]:
    """Four steps in one go, or two, and two more in an optimizer that loaded the state of the first."""
    job = Job(kind)
    job.run(2)
    if job.optimizer.local_state_dict()["state"] == {}:
        raise AssertionError("no state")
    weights = {name: value.clone() for name, value in job.weights().items()}
    saved = job.optimizer.local_state_dict() if partial else job.optimizer.state_dict()
    job.smp.state.model = None
    again = Job(kind)
    if when == "after":
        again.train(again.model, batches(1)[0].chunk(job.smp.dp_size())[job.smp.dp_rank()])
        again.optimizer.zero_grad()
    again.optimizer.load_state_dict(saved)
    again.model.load_state_dict(weights)
    again.run(2, begin=2)
    return again.weights()


@pytest.mark.parametrize(("partial", "when"), [(True, "before"), (False, "before"), (True, "after"), (False, "after")])
def test_state_is_loaded_before_and_after_the_first_step(partial: bool, when: str) -> None:
    """Statement 35: before the partition, loading waits for it."""
    expected = alone("adamw", 4)
    for one in run_ranks(resumed, 2, "adamw", partial, when, config=PIPELINE):
        assert equal(one.report, expected)


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_sharded_state_is_a_part_and_replicas_stay_equal(kind: str) -> None:
    """Statement 39."""
    reports = [one.report for one in run_ranks(trained, 4, kind, False, config=REPLICAS % SHARDED)]
    unsharded = [one.report for one in run_ranks(trained, 4, kind, False, config=REPLICAS % "")]
    for report, other in zip(reports, unsharded, strict=True):
        assert equal(report["weights"], other["weights"])
        # Each replica has half; the largest parameter bounds what whole ones may differ by.
        assert report["bytes"] <= other["bytes"] / 2 + (8 if kind == "adamw" else 2 * 4 * 70)
        assert report["full"].keys() == other["full"].keys()
        for number, state in other["full"]["state"].items():
            for name, value in state.items():
                assert torch.allclose(
                    torch.as_tensor(report["full"]["state"][number][name]), torch.as_tensor(value), rtol=1e-5, atol=1e-9
                )
    assert sum(one["bytes"] for one in reports) == sum(one["bytes"] for one in unsharded) / 2
    for name, value in reports[0]["weights"].items():
        assert all(torch.equal(one["weights"][name], value) for one in reports)


@pytest.mark.parametrize("partial", [True, False])
def test_sharded_state_resumes(partial: bool) -> None:
    expected = alone("adamw", 4)
    for one in run_ranks(resumed, 4, "adamw", partial, "before", config=REPLICAS % SHARDED):
        assert equal(one.report, expected, rtol=1e-4)


def refused() -> list[str]:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    untyped: Any = smp
    fake = type("FusedAdam", (), {"__module__": "apex.optimizers.fused_adam"})()
    model = nn.Linear(2, 2)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    said = []
    calls: list[Any] = [
        lambda: untyped.DistributedOptimizer(model),
        lambda: untyped.DistributedOptimizer(fake),
        lambda: optimizer.load_state_dict({"model": 1}),
        lambda: optimizer.load_state_dict(torch.optim.SGD([*model.parameters()][:1], lr=0.1).state_dict()),
    ]
    for call in calls:
        try:
            call()
            said.append("accepted")
        except smp.exceptions.SMPError as error:
            said.append(str(error))
    return said


def test_wrong_use_gets_one_sentence() -> None:
    """C10 for optimizers."""
    said = run_ranks(refused, 1)[0].report
    assert said[0].startswith("smp.DistributedOptimizer: optimizer is Linear(in_features=2, ")
    assert said[0].endswith(": it must be a torch.optim.Optimizer")
    assert said[1].startswith("smp.DistributedOptimizer was given apex.optimizers.fused_adam.FusedAdam: use the one of")
    assert said[2].startswith("optimizer.load_state_dict was given no optimizer state")
    assert said[3].startswith("the state is of an optimizer with groups of [1] parameters, this one has [2]")
