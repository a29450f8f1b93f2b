"""Checkpoints of models that are cut by tensor parallelism, initialised late, or recomputed in the backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_jobs import TWO, Job, Net
from smp_jobs import run_ranks

TENSOR = '{"tensor_parallel_degree": 2, "ddp": true, "microbatches": 2}'
TENSOR_PIPELINE = '{"tensor_parallel_degree": 2, "partitions": 2, "ddp": true, "microbatches": 2}'


def tensor_parallel() -> Net:
    import smdistributed.modelparallel.torch as smp

    with smp.tensor_parallelism():
        return Net()


def delayed() -> Net:
    import smdistributed.modelparallel.torch as smp

    with smp.delay_param_initialization():
        return Net()


def recomputed() -> Net:
    import smdistributed.modelparallel.torch as smp

    net = Net()
    smp.set_activation_checkpointing(net.chain, strategy="group_2")
    return net


BUILDS = {"tensor": tensor_parallel, "delayed": delayed, "recomputed": recomputed}


def uninterrupted(folder: str, kind: str) -> Any:
    job = Job(build=BUILDS[kind])
    job.run(0, 2)
    job.smp.save_checkpoint(folder, tag="two", model=job.model, optimizer=job.optimizer)
    job.smp.save_checkpoint(folder, tag="full", partial=False, model=job.model)
    return job.run(2, 12), job.weights()


def resumed(folder: str, kind: str) -> Any:
    job = Job(seed=3, build=BUILDS[kind])
    job.smp.resume_from_checkpoint(folder, tag="two")
    return job.run(2, 12), job.weights()


def from_full(folder: str, kind: str) -> Any:
    """The weights after a step that changes none: parameters of delayed models have values from the first step on."""
    job = Job(seed=3, build=BUILDS[kind])
    job.smp.resume_from_checkpoint(folder, partial=False)
    for group in job.optimizer.param_groups:
        group["lr"] = 0.0
    job.run(0, 1)
    return job.whole()


@pytest.mark.parametrize(
    ("kind", "ranks", "config"),
    [("tensor", 2, TENSOR), ("tensor", 4, TENSOR_PIPELINE), ("delayed", 2, TWO), ("recomputed", 2, TWO)],
)
def test_statement_33_every_kind_of_model_resumes_bit_equal(tmp_path: Path, kind: str, ranks: int, config: str) -> None:
    first = [one.report for one in run_ranks(uninterrupted, ranks, str(tmp_path), kind, config=config)]
    second = [one.report for one in run_ranks(resumed, ranks, str(tmp_path), kind, config=config)]
    assert first == second
    whole = torch.load(tmp_path / "full")
    assert list(whole) == list(Net().state_dict())
    Net().load_state_dict(whole, strict=True)
    parameters = {name: value.tolist() for name, value in whole.items() if name in dict(Net().named_parameters())}
    for one in run_ranks(from_full, ranks, str(tmp_path), kind, config=config):
        assert {name: value for name, value in one.report.items() if name in parameters} == parameters
