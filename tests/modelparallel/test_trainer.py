"""transformers' Trainer, the last release that knows smp, unmodified: it trains, evaluates, saves and resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from smp_jobs import HERE, SOURCES, run_ranks


def run(packages: Path, folder: Path, ranks: int, partitions: int, how: str = "train") -> list[dict[str, Any]]:
    config = {"partitions": partitions, "microbatches": 4, "ddp": True}
    env = {
        "PYTHONPATH": os.pathsep.join([str(packages), str(SOURCES)]),
        "SM_FRAMEWORK_PARAMS": '{"sagemaker_mpi_enabled": true}',
    }
    batch = 8 // (ranks // partitions)
    client = HERE / "trainer_client.py"
    run_ranks(client, ranks, folder, batch, how, launcher="mpirun", config=json.dumps(config), env=env, limit=200)
    return [json.loads((folder / f"losses.{rank}").read_text()) for rank in range(ranks)]


def test_trainer(packages: Path, tmp_path: Path) -> None:
    """Losses and norms are those of one rank, on two partitions, on two replicas of them, and after resuming.

    All ranks know them. The Trainer clips by default, to a norm of 1.
    """
    for name in ("one", "two", "four"):
        (tmp_path / name).mkdir()
    alone = run(packages, tmp_path / "one", 1, 1)[0]
    assert alone["losses"][-1] < alone["losses"][0]
    assert all(norm > 1.0 for norm in alone["norms"]), "nothing is clipped: the test would not see by which norm"
    found = run(packages, tmp_path / "two", 2, 2)
    (tmp_path / "two" / "final").rename(tmp_path / "two" / "first")
    found += run(packages, tmp_path / "two", 2, 2, "resume")
    found += run(packages, tmp_path / "four", 4, 2)
    for one in found:
        # The Trainer rounds losses to four digits.
        assert one["losses"] == pytest.approx(alone["losses"], abs=1.1e-4)
        assert one["norms"] == pytest.approx(alone["norms"], rel=1e-4)
        assert one["evaluation"] == pytest.approx(alone["evaluation"], rel=1e-5)
    names = {path.name for path in (tmp_path / "two" / "checkpoint-4").iterdir()}
    assert {"model.safetensors", "optimizer.pt_0", "optimizer.pt_1", "user_content.pt"} <= names
