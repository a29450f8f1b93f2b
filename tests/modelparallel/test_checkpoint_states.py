"""State dictionaries of models and optimizers, whole and partial, and the reader of checkpoints without a job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_jobs import FOUR, MODEL_SHARDED, TWO, Job, Net
from smdistributed.modelparallel.torch.exceptions import CheckpointError, SMPValueError
from smdistributed.modelparallel.torch.sharded_data_parallel_checkpoint import (
    get_full_state_dict_from_sharded_data_parallel_checkpoint as full_state,
)
from smp_jobs import run_ranks

PARTIAL = "_smp_is_partial"


def saved_by_hand(folder: str) -> Any:
    """The published recipe: smp.save of local and of whole dictionaries, on the ranks of dp_rank 0."""
    job = Job()
    job.run(0, 3)
    smp = job.smp
    if smp.dp_rank() == 0:
        local = {"model": job.model.local_state_dict(), "optimizer": job.optimizer.local_state_dict()}
        smp.save(local, f"{folder}/partial.pt", partial=True)
        whole = {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}
        if smp.pp_rank() == 0:
            smp.save(whole, f"{folder}/whole.pt", partial=False)
    smp.barrier()
    whole_now = job.whole()
    torch.manual_seed(0)
    return whole_now, job.run(3, 6)


def loaded(folder: str, partial: bool, late: bool) -> Any:
    job = Job(seed=8)
    if late:
        job.run(0, 1)
    found = job.smp.load(f"{folder}/{'partial' if partial else 'whole'}.pt", partial=partial)
    job.model.load_state_dict(found["model"])
    job.optimizer.load_state_dict(found["optimizer"])
    whole = job.whole() if late else None
    torch.manual_seed(0)
    return whole, job.run(3, 6)


def test_statements_31_and_35_partial_and_whole_states_load_before_and_after_the_partition(tmp_path: Path) -> None:
    first = run_ranks(saved_by_hand, 2, str(tmp_path), config=TWO)
    weights, losses = first[0].report
    parts = [torch.load(tmp_path / f"partial.pt_{rank}") for rank in (0, 1)]
    assert all(part["model"][PARTIAL] is True and part["optimizer"][PARTIAL] is True for part in parts)
    keys = [set(part["model"]) - {PARTIAL} for part in parts]
    assert all(keys)
    assert not keys[0] & keys[1]
    whole = torch.load(tmp_path / "whole.pt")
    assert list(whole["model"]) == list(Net().state_dict())
    assert keys[0] | keys[1] == set(whole["model"])
    merged = {name: value.tolist() for part in parts for name, value in part["model"].items() if name != PARTIAL}
    assert merged == weights == {name: value.tolist() for name, value in whole["model"].items()}
    plain = Net()
    plain.load_state_dict(whole["model"], strict=True)
    torch.optim.AdamW(plain.parameters()).load_state_dict(whole["optimizer"])
    for partial in (True, False):
        for late in (False, True):
            for one in run_ranks(loaded, 2, str(tmp_path), partial, late, config=TWO):
                found, after = one.report
                assert found in (None, weights)
                assert after == pytest.approx(losses, rel=1e-6)


def saved_sharded(folder: str) -> Any:
    job = Job()
    job.run(0, 2)
    job.smp.save_checkpoint(folder, tag="two", model=job.model, optimizer=job.optimizer)
    job.smp.save_checkpoint(folder, tag="full", partial=False, model=job.model)
    return job.whole()


@pytest.mark.parametrize(("ranks", "config"), [(2, MODEL_SHARDED), (2, TWO), (4, FOUR)])
def test_a_partial_checkpoint_becomes_a_plain_state_dict(tmp_path: Path, ranks: int, config: str) -> None:
    weights = run_ranks(saved_sharded, ranks, str(tmp_path), config=config)[0].report
    found = full_state(str(tmp_path), torch.float32, "two", True)
    assert {name: value.tolist() for name, value in found.items()} == weights
    Net().load_state_dict(found, strict=True)
    half = full_state(str(tmp_path), "float16", tag="two")
    assert {value.dtype for name, value in half.items() if "num_batches" not in name} == {torch.float16}
    full = torch.load(tmp_path / "full")
    assert {name: value.tolist() for name, value in full.items()} == weights
    with pytest.raises(CheckpointError, match=re.escape(f"there is no checkpoint {tmp_path}/three_partial")):
        full_state(str(tmp_path), tag="three")
    with pytest.raises(SMPValueError, match="dtype is 'int8': it must be a floating point dtype"):
        full_state(str(tmp_path), "int8", tag="two")
