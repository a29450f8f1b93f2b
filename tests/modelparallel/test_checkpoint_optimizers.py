"""Checkpoints of jobs whose optimizer state is spread: shards of parameters, master weights, shares of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoint_jobs
import pytest
import test_fp16
import test_sharding
import torch
from smp_jobs import run_ranks
from torch import nn


def through_a_checkpoint(job: Any, again: Any, folder: str) -> bool:
    """Whether two steps, a checkpoint, and two steps of a job that resumed from it give what four steps give."""
    smp = job.smp
    job.run(2)
    smp.save_checkpoint(folder, tag="two", partial=True, model=job.model, optimizer=job.optimizer)
    smp.barrier()
    job.run(2, begin=2)
    expected = {name: value.clone() for name, value in job.model.state_dict().items()}
    # As a new process would begin.
    smp.state.model = None
    smp.state.after_backward.clear()
    resumed = again()
    smp.resume_from_checkpoint(folder, tag="two", partial=True)
    resumed.run(2, begin=2)
    found = resumed.model.state_dict()
    return all(torch.equal(found[name], value) for name, value in expected.items())


def shards(folder: str) -> bool:
    return through_a_checkpoint(test_sharding.Job(), test_sharding.Job, folder)


def halves(folder: str) -> bool:
    return through_a_checkpoint(halves_job(), halves_job, folder)


@pytest.mark.parametrize("size", [2, 4])
def test_sharded_models_resume_bit_equal(tmp_path: Path, size: int) -> None:
    """Statements 33 and 40."""
    ranks = run_ranks(shards, size, str(tmp_path), config=test_sharding.CONFIG % (2, test_sharding.CLIP))
    assert [one.report for one in ranks] == [True] * size


@pytest.mark.parametrize(("size", "extra"), [(2, ""), (4, test_fp16.SHARDED)])
def test_half_precision_models_resume_bit_equal(tmp_path: Path, size: int, extra: str) -> None:
    """Statements 33 and 39: with their master weights and loss scale."""
    ranks = run_ranks(halves, size, str(tmp_path), config=test_fp16.BASE % extra)
    assert [one.report for one in ranks] == [True] * size


def saved_halves(folder: str) -> tuple[Any, float]:
    job = halves_job()
    job.run(2)
    job.smp.save_checkpoint(folder, tag="two", model=job.model, optimizer=job.optimizer)
    return whole(job), job.optimizer.loss_scale


def resumed_without_state(folder: str) -> tuple[str, Any, float, dict[int, float]]:
    """What a load of the sharded state says; the weights, scale and counts of steps of a load without it and a step."""
    job = halves_job()
    try:
        job.smp.resume_from_checkpoint(folder)
        said = ""
    except job.smp.exceptions.CheckpointError as error:
        said = str(error)
    job.smp.resume_from_checkpoint(folder, load_sharded_optimizer_state=False)
    scale = job.optimizer.loss_scale
    for group in job.optimizer.param_groups:
        group["lr"] = 0.0
    job.run(1)
    state = job.optimizer.local_state_dict(gather_if_shard=False)["state"]
    return said, whole(job), scale, {number: float(one["step"]) for number, one in state.items()}


def halves_job() -> test_fp16.Job:
    return test_fp16.Job(dynamic_loss_scale=True, init_scale=2.0**8, scale_window=2)


def whole(job: Any) -> dict[str, Any]:
    return {name: value.tolist() for name, value in job.model.state_dict().items()}


def test_weights_without_the_sharded_state_fit_another_number_of_replicas(tmp_path: Path) -> None:
    """load_sharded_optimizer_state=False: weights and loss scale; the moments begin anew."""
    config = test_fp16.BASE % test_fp16.SHARDED
    weights, scale = run_ranks(saved_halves, 4, str(tmp_path), config=config)[0].report
    assert scale == 2.0**9
    for size in (2, 8):
        for one in run_ranks(resumed_without_state, size, str(tmp_path), config=config):
            said, found, found_scale, steps = one.report
            assert said.endswith(
                f"with reduced_data_parallel_degree 2, and this job has {size // 2}: resume with 2, or pass "
                "load_sharded_optimizer_state=False"
            )
            assert found == weights
            assert found_scale == scale
            assert set(steps.values()) <= {1.0}


def saved_weights(folder: str, partial: bool) -> Any:
    job = checkpoint_jobs.Job()
    job.run(0, 1)
    job.smp.save_checkpoint(folder, tag="one", partial=partial, model=job.model)
    return job.whole()


class Extended(checkpoint_jobs.Net):
    """With a module that the checkpoint lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.extra(super().forward(x))


def resumed_loosely(folder: str, partial: bool) -> tuple[str, Any]:
    job = checkpoint_jobs.Job(seed=4, build=Extended)
    job.run(0, 1)
    try:
        job.smp.resume_from_checkpoint(folder, partial=partial, load_optimizer=False)
        said = ""
    except RuntimeError as error:
        said = str(error)
    job.smp.resume_from_checkpoint(folder, partial=partial, load_optimizer=False, strict=False)
    return said, job.whole()


@pytest.mark.parametrize("partial", [True, False])
def test_strict_refuses_other_names_and_strict_false_loads_what_there_is(tmp_path: Path, partial: bool) -> None:
    weights = run_ranks(saved_weights, 2, str(tmp_path), partial, config=checkpoint_jobs.TWO)[0].report
    for one in run_ranks(resumed_loosely, 2, str(tmp_path), partial, config=checkpoint_jobs.TWO):
        said, found = one.report
        assert "Missing key(s): extra.bias, extra.weight." in said
        assert {name: value for name, value in found.items() if name in weights} == weights
        assert set(found) - set(weights) == {"extra.weight", "extra.bias"}
