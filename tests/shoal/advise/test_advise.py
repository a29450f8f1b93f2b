"""The worked numbers, the schedule against the formula of the paper, and what is said about bad input."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR

from shoal.advise import quantity, storage
from shoal.advise.batch import batch_plan
from shoal.advise.warmup import scaled_lr, warmup_then
from shoal.cli import app
from shoal.errors import ShoalError

SHOAL = [sys.executable, "-c", "from shoal.cli import main; main()"]
DATASET, EPOCH_S = 100 * 10**9, 30.0
SCRATCH_2 = storage.TYPES["SCRATCH_2"]


def advise(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SHOAL, "advise", *options], capture_output=True, text=True, timeout=100, check=False)


def test_need() -> None:
    assert storage.fsx_plan(SCRATCH_2, DATASET, EPOCH_S).need_bytes_s == pytest.approx(3.33e9, rel=0.002)


def test_smallest_file_system() -> None:
    assert SCRATCH_2.unit_bytes_s == pytest.approx(240e6)


def test_from_disk_alone() -> None:
    system = storage.fsx_plan(SCRATCH_2, DATASET, EPOCH_S).from_disk
    assert system.units == 14
    assert system.tib == pytest.approx(16.8)


def test_sufficient_with_the_cache() -> None:
    system = storage.assess(SCRATCH_2, 10, DATASET, EPOCH_S)
    assert system.tib == pytest.approx(12)
    assert system.bytes_s == pytest.approx(2.4e9)
    assert system.cache == pytest.approx(67e9)
    assert system.suffices


def test_first_and_later_epochs() -> None:
    system = storage.assess(SCRATCH_2, 10, DATASET, EPOCH_S)
    assert round(system.first_epoch_s) == 42
    assert system.later_bytes_s == pytest.approx(1.1e9)


@pytest.mark.parametrize("name", storage.TYPES)
@pytest.mark.parametrize("dataset", [10**6, 10**11, 7 * 10**12, 10**15])
@pytest.mark.parametrize("epoch_s", [5.0, 600.0, 86400.0])
def test_each_answer_is_the_smallest_there_is(name: str, dataset: int, epoch_s: float) -> None:
    kind = storage.TYPES[name]
    plan = storage.fsx_plan(kind, dataset, epoch_s)

    def holds(units: int) -> bool:
        return units * storage.UNIT_TIB * quantity.TIB >= dataset

    def from_disk(units: int) -> bool:
        return holds(units) and units * kind.unit_bytes_s * epoch_s >= dataset * (1 - 1e-9)

    def with_cache(units: int) -> bool:
        return holds(units) and storage.assess(kind, units, dataset, epoch_s).suffices

    for system, good in ((plan.from_disk, from_disk), (plan.with_cache, with_cache)):
        assert good(system.units)
        smaller = system.units - 2 if system.units > 2 else system.units - 1
        assert smaller == 0 or not good(smaller)


def test_capacities_that_are_sold() -> None:
    assert [storage.valid_units(least) for least in (0.01, 1, 1.5, 2, 2.1, 4, 5)] == [1, 1, 2, 2, 4, 4, 6]


def test_scaling_rule_and_warm_up_steps() -> None:
    plan = batch_plan(ranks=256, batch_per_rank=32, base_batch=256, base_lr=0.1, samples=1_281_167, warmup_epochs=5)
    assert (plan.global_batch, plan.factor) == (8192, 32)
    assert plan.learning_rate == pytest.approx(3.2)
    assert (plan.steps_per_epoch, plan.warmup_steps) == (157, 785)


def test_an_epoch_of_ten_steps() -> None:
    plan = batch_plan(ranks=10, batch_per_rank=50, base_batch=500, base_lr=0.1, samples=5000, warmup_epochs=5)
    assert plan.steps_per_epoch == 10
    assert (plan.learning_rate, plan.warmup_steps) == (0.1, 0)  # the base batch itself


def multi_step(optimizer: Optimizer) -> LRScheduler:
    return MultiStepLR(optimizer, [30, 60], gamma=0.1)


def cosine(optimizer: Optimizer) -> LRScheduler:
    return CosineAnnealingLR(optimizer, T_max=80)


def rates(optimizer: Optimizer, schedule: LRScheduler, steps: int) -> list[float]:
    seen = []
    for _ in range(steps):
        seen.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return seen


def sgd(lr: float) -> Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("after", [multi_step, cosine])
def test_warm_up_is_the_paper_s(after: Callable[[Optimizer], LRScheduler]) -> None:
    base, factor, warmup_steps = 0.1, 8, 50
    scaled = scaled_lr(base, 256, 2048)
    alone = sgd(scaled)
    expected = [base + (scaled - base) * step / warmup_steps for step in range(warmup_steps)]
    expected += rates(alone, after(alone), 80)
    optimizer = sgd(scaled)
    schedule = warmup_then(optimizer, after(optimizer), warmup_steps, factor)
    assert rates(optimizer, schedule, len(expected)) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_no_warm_up_leaves_the_schedule() -> None:
    optimizer = sgd(0.1)
    schedule = cosine(optimizer)
    assert warmup_then(optimizer, schedule, 0, 8) is schedule


def test_a_factor_below_one() -> None:
    optimizer = sgd(0.1)
    with pytest.raises(ValueError, match=r"factor=0\.5"):
        warmup_then(optimizer, cosine(optimizer), 10, 0.5)


def test_the_command_as_text_and_json() -> None:
    options = ("--dataset", "100GB", "--epoch-seconds", "30", "--capacity", "12TiB", "--hosts", "4")
    batch = ("--devices=8", "--batch-per-device=32", "--base-batch=256", "--base-lr=0.1", "--samples=1281167")
    done = advise(*options, *batch)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[3:5] == [
        "      9.6 TiB  1.92 GB/s, 53.6 GB of cache: first epoch 52 s; later ones need 1.55 GB/s from disk: enough",
        "     12.0 TiB  2.4 GB/s, 67 GB of cache: first epoch 42 s; later ones need 1.1 GB/s from disk: enough",
    ]
    told: dict[str, Any] = json.loads(advise(*options, *batch, "--json").stdout)
    assert told["storage"]["from_disk"]["units"] == 14
    assert told["batch"]["global_batch"] == 1024


EPOCH = ("--dataset=1GB", "--epoch-seconds=1")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "advise: give --dataset and --epoch-seconds, or --batch-per-device,"),
        (("--dataset=100GB",), "advise: --dataset and --epoch-seconds are needed together"),
        (("--dataset=100", "--epoch-seconds=3"), "--dataset: '100' is not a size: write a number and a unit"),
        (("--dataset=1GB", "--epoch-seconds=nan"), "--epoch-seconds: nan: a number above 0 was expected"),
        (("--dataset=1GB", "--epoch-seconds=1", "--storage=EFS"), "--storage: 'EFS' is not one of SCRATCH_2,"),
        (("--dataset=1GB", "--epoch-seconds=1", "--capacity=5TiB"), "--capacity: '5TiB': FSx has 1.2 TiB,"),
        ((f"--dataset={'9' * 400}GB", "--epoch-seconds=1"), "--dataset: '999"),
        (("--dataset=1GB", "--epoch-seconds=1e-320"), "advise: a number is larger, or a time shorter, than"),
        ((*EPOCH, f"--hosts={10**400}"), "advise: a number is larger, or a time shorter, than can be reckoned with"),
        (("--base-lr=0.1",), "advise: --batch-per-device, --base-batch, --base-lr and --samples are needed together"),
    ],
)
def test_bad_input(options: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ShoalError) as raised:
        app(["advise", *options], standalone_mode=False)
    assert str(raised.value).startswith(expected)
    assert "\n" not in str(raised.value)
