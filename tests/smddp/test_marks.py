"""The lines that unchanged scripts on smddp leave for `shoal report` where their job is measured, and nowhere else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_jobs import PYTHON, Rank, run_ranks

ENTRYPOINT = Path(__file__).parents[2] / "entrypoint" / "src"
# workers/unmarked.py
EPOCHS, BATCHES, BATCH, LOAD_SECONDS = 2, 4, 4, 0.005

pytestmark = pytest.mark.skipif(sys.executable != PYTHON, reason="the marks need torch 2.0, and are tested with one")


def train(worker: str, output: Path, *arguments: str, ranks: int = 2) -> list[Rank]:
    return run_ranks(
        worker,
        ranks,
        *arguments,
        env={
            "SM_OUTPUT_DIR": str(output),
            "PYTHONPATH": os.pathsep.join([str(ENTRYPOINT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
    )


def lines(output: Path, rank: int) -> list[dict[str, Any]]:
    file = output / "profiler" / "steps" / f"algo-1-{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def sum_of_parts(line: dict[str, Any]) -> float:
    return sum(float(line[name]) for name in ("DataSeconds", "CollectiveSeconds", "CheckpointSeconds"))


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """An output folder as `train` makes it where it measures."""
    (tmp_path / "profiler" / "steps").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("api", ["torch", "legacy"])
def test_a_line_a_step(measured: Path, api: str) -> None:
    ranks = train("unmarked", measured, api, str(measured / "checkpoint.pt"))
    for rank in ranks:
        weight = rank.report["gradient_bytes"]
        told = lines(measured, rank.rank)
        # No more than that: evaluation is of no step.
        assert [(one["Rank"], one["Step"]) for one in told] == [(rank.rank, n) for n in range(EPOCHS * BATCHES)]
        for one in told:
            reduced = one["Collectives"]["all_reduce"]
            assert reduced["Bytes"] == weight
            assert reduced["Seconds"] > 0
            assert reduced["BytesPerSecond"] == pytest.approx(weight / reduced["Seconds"])
            assert one["CollectiveBytes"] == sum(count["Bytes"] for count in one["Collectives"].values())
            assert one["CollectiveSeconds"] > 0
            assert sum_of_parts(one) <= one["Seconds"] * (1 + 1e-9)
        # In the second step DDP agrees on its buckets, else gradients are all that is sent.
        assert [one["CollectiveBytes"] for one in told if one["Step"] != 1] == [weight] * (EPOCHS * BATCHES - 1)
        # In the first epoch the training process itself makes the batches, and sleeps.
        assert all(one["DataSeconds"] >= BATCH * LOAD_SECONDS for one in told[:BATCHES])
        # Between two epochs, by rank 0 alone.
        saved = [one["Step"] for one in told if one["CheckpointSeconds"] > 0]
        assert saved == ([BATCHES] if rank.rank == 0 else [])


def test_the_script_s_own_marks_win(measured: Path) -> None:
    for rank in train("unmarked", measured, "by-hand", str(measured / "checkpoint.pt")):
        told = lines(measured, rank.rank)
        assert [one["Step"] for one in told] == list(range(EPOCHS * BATCHES))
        # What it does not mark is filled in.
        assert all(one["Collectives"]["all_reduce"]["Bytes"] == rank.report["gradient_bytes"] for one in told)
        assert all(0 < sum_of_parts(one) <= one["Seconds"] * (1 + 1e-9) for one in told)


def test_nothing_where_nothing_is_measured(tmp_path: Path) -> None:
    (rank,) = train("unmarked", tmp_path, "torch", str(tmp_path / "checkpoint.pt"), ranks=1)
    assert rank.report["entrypoint"] is False
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_nothing_where_nobody_can_write(measured: Path, tmp_path: Path) -> None:
    """In a container without the entrypoint, or with one that fails."""
    broken = tmp_path / "broken" / "shoal_entrypoint"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError")
    environment = {
        "SM_OUTPUT_DIR": str(measured),
        "PYTHONPATH": os.pathsep.join([str(broken.parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    run_ranks("unmarked", 1, "torch", str(tmp_path / "checkpoint.pt"), env=environment)
    assert list((measured / "profiler" / "steps").iterdir()) == []


def test_lightning_s_steps(measured: Path) -> None:
    for rank in train("lightning_fit", measured, "smddp"):
        told = lines(measured, rank.rank)
        assert len(told) == rank.report["steps"]
        # The gradients, and the loss, which the model logs as the mean over ranks.
        weight = (8 * 64 + 64 + 64 + 1) * 4
        assert {one["Collectives"]["all_reduce"]["Bytes"] for one in told} <= {weight, weight + 4}
        assert all(0 < sum_of_parts(one) <= one["Seconds"] * (1 + 1e-9) for one in told)
        assert all(one["CollectiveSeconds"] > 0 for one in told)
