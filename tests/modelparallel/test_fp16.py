"""Half precision: loss scales, master weights, overflow and norms agreed by all ranks of a model."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from smdistributed.modelparallel.torch.fp16 import DynamicLossScale, LossScale, loss_scale
from smp_jobs import run_ranks
from torch import nn

BASE = '{"partitions": 2, "microbatches": 2, "auto_partition": false, "default_partition": 0, "fp16": true%s}'

DDP = ', "ddp": true'
SHARDED = DDP + ', "shard_optimizer_state": true'


def scales(scale: LossScale, overflows: str) -> list[float]:
    found = []
    for overflow in overflows:
        scale.update(overflow == "x")
        found.append(scale.scale)
    return found


def test_a_dynamic_scale_follows_overflows() -> None:
    assert scales(DynamicLossScale(16, 2, scale_window=3), ".xx...x.") == [16, 8, 4, 4, 4, 8, 4, 4]
    assert scales(DynamicLossScale(4, 4, min_scale=2), "xx") == [2, 2]


def test_delayed_shift_lets_overflows_pass() -> None:
    assert scales(DynamicLossScale(16, delayed_shift=3), "xxxx") == [16, 16, 8, 4]
    assert scales(DynamicLossScale(16, delayed_shift=2), "x.x") == [16, 16, 8]
    assert scales(DynamicLossScale(16, delayed_shift=2, consecutive_hysteresis=True), "x.x") == [16, 16, 16]


def test_a_scale_goes_on_from_its_state() -> None:
    first, second = DynamicLossScale(16, scale_window=4), DynamicLossScale()
    scales(first, "..")
    second.load_state_dict(first.state_dict())
    assert scales(second, "..") == [16, 32]


def test_what_the_arguments_ask_for() -> None:
    assert loss_scale(128.0, False, {}).scale == 128.0
    assert loss_scale(None, False, {}).scale == 1.0
    assert loss_scale(None, True, {}).scale == 2.0**32
    assert loss_scale(1.0, True, {"init_scale": 8.0}).scale == 8.0
    with pytest.raises(ValueError, match="has no loss scale argument 'window': it has init_scale"):
        loss_scale(None, True, {"window": 3})
    with pytest.raises(ValueError, match="scale_window is 0: it must be a whole number of at least 1"):
        loss_scale(None, True, {"scale_window": 0})
    with pytest.raises(ValueError, match="static_loss_scale is -1: it must be a positive number"):
        loss_scale(-1, False, {})


def build(parts: Any = None) -> nn.Sequential:
    torch.manual_seed(0)
    first = [nn.Linear(6, 10), nn.Tanh()]
    if parts is None:
        return nn.Sequential(*first, nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 1)).half()
    with parts.partition(1):
        second = [nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 1)]
    return nn.Sequential(*first, *second).half()


def batches(count: int, begin: int = 0) -> list[torch.Tensor]:
    return [torch.randn(8, 6, generator=torch.Generator().manual_seed(begin + index)).half() for index in range(count)]


def alone(steps: int, clip: float) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Mixed precision by hand in one process: float32 weights beside the model's, a scale of 128, two micro-batches."""
    model = build()
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.01)
    norms = []
    for batch in batches(steps):
        model.zero_grad()
        for part in batch.chunk(2):
            (model(part).float().pow(2).mean() * 64).backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float() / 128
        norms.append(float(nn.utils.clip_grad_norm_(masters, clip)))
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, norms


class Job:
    def __init__(self, **scale: Any) -> None:
        import smdistributed.modelparallel.torch as smp

        smp.init()
        self.smp = smp
        plain = build(smp)
        self.model = smp.DistributedModel(plain)
        self.optimizer = smp.DistributedOptimizer(torch.optim.AdamW(plain.parameters(), lr=0.01), **scale)

        @smp.step
        def train(model: Any, batch: torch.Tensor, weight: float) -> torch.Tensor:
            output = model(batch)
            assert output.dtype == torch.float32
            loss: torch.Tensor = output.pow(2).mean() * weight
            model.backward(loss)
            return loss

        self.train = train

    def run(self, steps: int, begin: int = 0, clip: float = 0.05) -> list[float]:
        norms = []
        for batch in batches(steps, begin):
            self.optimizer.zero_grad()
            # As a loader gives it: the model takes float32 and returns it.
            self.train(self.model, batch.chunk(self.smp.dp_size())[self.smp.dp_rank()].float(), 1.0)
            norms.append(self.optimizer.clip_master_grads(clip))
            self.optimizer.step()
        return norms


def trained() -> dict[str, Any]:
    job = Job(static_loss_scale=128.0)
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 100)
    norms = job.run(4)
    scheduler.step()
    return {
        "norms": norms,
        "weights": job.model.state_dict(),
        "masters": sum(len(group) for group in job.optimizer.fp32_from_fp16_groups),
        "dtypes": {value.dtype for group in job.optimizer.fp32_from_fp16_groups for value in group},
        "scale": (job.optimizer.loss_scale, job.optimizer.dynamic_loss_scale, job.optimizer.overflow),
        "norm": job.optimizer._global_grad_norm,
    }


@pytest.mark.parametrize(("size", "extra"), [(2, ""), (4, DDP), (4, SHARDED)])
def test_master_weights_train_as_by_hand(size: int, extra: str) -> None:
    """C7, C8 and statement 18: norms are those of the whole model, clipped, on every rank."""
    reports = [one.report for one in run_ranks(trained, size, config=BASE % extra)]
    expected, norms = alone(4, clip=0.05)
    for report in reports:
        # Half precision sums in another order: two units in the last place of the largest terms.
        assert report["norms"] == pytest.approx(norms, rel=5e-3)
        assert report["norms"] == reports[0]["norms"]
        assert report["norm"] == report["norms"][-1]
        assert report["scale"] == (128.0, False, False)
        assert report["dtypes"] == {torch.float32}
        for name, value in expected.items():
            assert report["weights"][name].dtype == torch.float16
            assert torch.allclose(report["weights"][name].float(), value.float(), atol=2e-3)
            assert torch.equal(report["weights"][name], reports[0]["weights"][name])
    if "shard" not in extra:
        assert [report["masters"] for report in reports[:2]] == [2, 4]


def overflowed() -> list[object]:
    job = Job(static_loss_scale=None, dynamic_loss_scale=True, dynamic_loss_args={"init_scale": 2.0**10})
    job.run(1)
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    state = [value.clone() for group in job.optimizer.fp32_from_fp16_groups for value in group]
    job.optimizer.zero_grad()
    # Only the last layer's gradients (of partition 1) overflow in themselves, or neither where weight is 1.
    job.train(job.model, batches(1, 7)[0], 1e6)
    norm = job.optimizer.clip_master_grads(1.0)
    job.optimizer.step()
    after = job.model.state_dict()
    unchanged = all(torch.equal(before[name], after[name]) for name in before)
    masters = [value for group in job.optimizer.fp32_from_fp16_groups for value in group]
    unchanged = unchanged and all(torch.equal(old, new) for old, new in zip(state, masters, strict=True))
    found: list[object] = [norm, job.optimizer.overflow, job.optimizer.loss_scale, unchanged]
    job.run(1)
    moved = any(not torch.equal(before[name], value) for name, value in job.model.state_dict().items())
    return [*found, job.optimizer.overflow, moved]


def test_an_overflow_leaves_the_step_out_on_every_rank() -> None:
    for one in run_ranks(overflowed, 2, config=BASE % ""):
        assert one.report == [-1.0, True, 2.0**9, True, False, True]


def one_sided() -> list[object]:
    import smdistributed.modelparallel.torch as smp

    job = Job(static_loss_scale=4.0)
    job.run(1)
    before = [value.clone() for group in job.optimizer.fp32_from_fp16_groups for value in group]
    job.optimizer.zero_grad()
    job.train(job.model, batches(1)[0], 1.0)
    if smp.pp_rank() == 1:
        next(job.model.local_parameters()).grad = torch.full((5, 10), math.inf, dtype=torch.float16)
    job.optimizer.step()
    after = [value for group in job.optimizer.fp32_from_fp16_groups for value in group]
    return [job.optimizer.overflow, all(torch.equal(old, new) for old, new in zip(before, after, strict=True))]


def test_an_overflow_on_one_rank_counts_on_all() -> None:
    for one in run_ranks(one_sided, 2, config=BASE % ""):
        assert one.report == [True, True]


def reloaded() -> list[bool]:
    job = Job(static_loss_scale=4.0)
    job.run(1)
    weights = {name: value * 2 for name, value in job.model.state_dict().items()}
    job.model.load_state_dict(weights)
    parts = [part for part in job.optimizer.optimizer.parts() if part.master]
    return [torch.equal(part.parameter, part.source.float()) for part in parts]


def test_weights_loaded_in_mid_training_reach_the_masters() -> None:
    for one in run_ranks(reloaded, 2, config=BASE % ""):
        assert one.report
        assert all(one.report)


def resumed(partial: bool, order: str) -> list[Any]:
    """Four steps in one go; and two, saved, then two more by a new optimizer that loaded them."""
    job = Job(static_loss_scale=None, dynamic_loss_scale=True, init_scale=2.0**8, scale_window=2)
    job.run(2)
    weights = {name: value.clone() for name, value in job.model.state_dict().items()}
    # As torch's, these refer to what the next steps change.
    saved = copy.deepcopy(job.optimizer.local_state_dict() if partial else job.optimizer.state_dict())
    job.run(2, begin=2)
    through = job.model.state_dict()
    job.smp.state.model = None
    again = Job(static_loss_scale=None, dynamic_loss_scale=True, init_scale=2.0, scale_window=2)
    if order == "model first":
        again.model.load_state_dict(weights)
        again.optimizer.load_state_dict(saved)
    else:
        if order == "late":
            again.run(1)
        again.optimizer.load_state_dict(saved)
        again.model.load_state_dict(weights)
    again.run(2, begin=2)
    return [through, again.model.state_dict(), job.optimizer.loss_scale, again.optimizer.loss_scale]


@pytest.mark.parametrize(
    ("partial", "order", "size", "extra"),
    [
        (True, "model first", 2, ""),
        (True, "optimizer first", 2, ""),
        (True, "late", 2, ""),
        (False, "late", 4, SHARDED),
    ],
)
def test_master_weights_and_scale_resume_bit_equal(partial: bool, order: str, size: int, extra: str) -> None:
    for one in run_ranks(resumed, size, partial, order, config=BASE % extra):
        through, again, scale, scale_again = one.report
        assert scale == scale_again == 2.0**10
        assert all(torch.equal(through[name], again[name]) for name in through)
