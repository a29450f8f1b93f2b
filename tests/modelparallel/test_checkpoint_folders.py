"""save_checkpoint and resume_from_checkpoint on several ranks: what is written, what comes back, what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_jobs import FOUR, HALF, MANUAL, MODEL_SHARDED, OPTIMIZER_SHARDED, TWO, Job, Net
from smp_jobs import run_ranks


def uninterrupted(folder: str) -> Any:
    job = Job()
    job.run(0, 3)
    job.smp.save_checkpoint(folder, tag="three", model=job.model, optimizer=job.optimizer, user_content={"step": 3})
    return job.run(3, 13), job.weights()


def resumed(folder: str) -> Any:
    job = Job(seed=77)
    content = job.smp.resume_from_checkpoint(folder)
    return job.run(content["step"], content["step"] + 10), job.weights()


@pytest.mark.parametrize(("ranks", "config"), [(1, "{}"), (2, TWO), (4, TWO)])
def test_statement_33_and_c9_a_partial_checkpoint_resumes_bit_equal(tmp_path: Path, ranks: int, config: str) -> None:
    """Ten further steps with dropout, from other initial weights and seeds, have the same losses and weights."""
    first = [one.report for one in run_ranks(uninterrupted, ranks, str(tmp_path), config=config)]
    second = [one.report for one in run_ranks(resumed, ranks, str(tmp_path), config=config)]
    assert first == second
    assert len(first[0][0]) == 10
    partitions = 1 if ranks == 1 else 2
    assert sorted(one.name for one in (tmp_path / "three_partial").iterdir()) == sorted(
        [
            *[f"{kind}_{pp}_0.pt" for pp in range(partitions) for kind in ("model", "optimizer")],
            *[f"replica_{pp}_0_{rdp}.pt" for pp in range(partitions) for rdp in range(ranks // partitions)],
            *["partition.pt", "user_content.pt"],
        ]
    )
    assert (tmp_path / "newest").read_text().strip() == "three_partial"


@pytest.mark.parametrize(("ranks", "config"), [(4, OPTIMIZER_SHARDED), (2, MODEL_SHARDED), (2, HALF)])
def test_statement_33_sharded_state_and_master_weights_resume_bit_equal(
    tmp_path: Path, ranks: int, config: str
) -> None:
    """Optimizer state over replicas, parameters over replicas, half precision with its loss scale."""
    first = [one.report for one in run_ranks(uninterrupted, ranks, str(tmp_path), config=config)]
    second = [one.report for one in run_ranks(resumed, ranks, str(tmp_path), config=config)]
    assert first == second
    optimizers = sorted(one.name for one in (tmp_path / "three_partial").glob("optimizer_*"))
    assert len(optimizers) == ranks
    assert bool(list((tmp_path / "three_partial").glob("fp16_states_*"))) == (config == HALF)


def saved_twice_and_full(folder: str) -> Any:
    job = Job()
    for number in range(4):
        job.run(number, number + 1)
        job.smp.save_checkpoint(
            folder, tag=f"step{number}", model=job.model, user_content=number, num_kept_partial_checkpoints=2
        )
    names = sorted(one.name for one in Path(folder).iterdir())
    job.smp.save_checkpoint(folder, tag="full", partial=False, model=job.model, user_content={"full": True})
    return names, job.whole()


def resumed_from_full(folder: str) -> Any:
    job = Job(seed=5)
    content = job.smp.resume_from_checkpoint(folder, partial=False)
    before = job.whole()
    job.run(0, 1)
    return content, before, job.model.owners


def resumed_from_another_degree(folder: str) -> Any:
    job = Job(seed=6)
    content = job.smp.resume_from_checkpoint(folder, tag="step3", load_optimizer=False)
    return content, job.whole()


def test_statements_33_and_34_full_checkpoints_are_plain_and_fit_any_partition(tmp_path: Path) -> None:
    """C9: the file loads into the plain module, strictly; 1, 2 and 4 ranks resume from it and partition anew."""
    report = run_ranks(saved_twice_and_full, 2, str(tmp_path), config=TWO)[0].report
    assert report[0] == ["newest", "step2_partial", "step3_partial"]
    plain = Net()
    keys = list(plain.state_dict())
    found = torch.load(tmp_path / "full")
    assert list(found) == keys
    plain.load_state_dict(found, strict=True)
    assert {name: value.tolist() for name, value in plain.state_dict().items()} == report[1]
    assert torch.load(tmp_path / "user_content_full") == {"full": True}
    assert (tmp_path / "newest").read_text().strip() == "full"
    for ranks, config in ((1, "{}"), (2, TWO), (4, FOUR)):
        for one in run_ranks(resumed_from_full, ranks, str(tmp_path), config=config):
            content, weights, owners = one.report
            assert content == {"full": True}
            assert weights == report[1]
            assert set(owners.values()) == set(range(ranks))
    for ranks, config in ((1, "{}"), (4, FOUR)):
        for one in run_ranks(resumed_from_another_degree, ranks, str(tmp_path), config=config):
            assert one.report == (3, report[1])


def other_partition(folder: str) -> Any:
    """Saved with a partition by hand; resumed by a job whose own decision would be another."""
    job = Job()
    for name, rank in (("chain.0", 1), ("chain.5", 1)):
        job.smp.set_partition(job.plain.get_submodule(name), rank)
    job.run(0, 1)
    job.smp.save_checkpoint(folder, tag="hand", model=job.model, optimizer=job.optimizer)
    return job.model.owners


def resumed_before_and_after(folder: str, late: bool) -> Any:
    job = Job(seed=9)
    if late:
        job.run(0, 2)
    job.smp.resume_from_checkpoint(folder, tag="hand")
    whole = job.whole() if late else None
    return whole, job.run(1, 4), job.model.owners


def test_statement_33_the_saved_partition_is_used_again(tmp_path: Path) -> None:
    owners = run_ranks(other_partition, 2, str(tmp_path), config=MANUAL)[0].report
    assert {name for name, rank in owners.items() if rank == 1 and name.count(".") == 1} == {"chain.0", "chain.5"}
    early = [one.report for one in run_ranks(resumed_before_and_after, 2, str(tmp_path), False, config=TWO)]
    late = [one.report for one in run_ranks(resumed_before_and_after, 2, str(tmp_path), True, config=TWO)]
    assert all(found == owners for _, _, found in early)
    # After the first step the partition stands: the parts are merged, and training goes on where it was.
    assert all(found != owners for _, _, found in late)
    whole = {name: value.tolist() for rank in (0, 1) for name, value in _part(tmp_path, rank).items() if name[0] != "_"}
    assert all(found == whole for found, _, _ in late)


def _part(folder: Path, rank: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "hand_partial" / f"model_{rank}_0.pt")
    return found
