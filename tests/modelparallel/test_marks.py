"""The lines that an unchanged smp script leaves for `shoal report` where its job is measured, and nowhere else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from smp_jobs import run_ranks

ENTRYPOINT = Path(__file__).parents[2] / "entrypoint" / "src"
BATCHES, BATCH, WIDTH = 6, 8, 50


def client(config: dict[str, Any], folder: str) -> tuple[int, bool]:
    """Train and evaluate; return what this rank's gradients weigh, and whether the marks were imported."""
    import smdistributed.modelparallel.torch as smp
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    sys.path.insert(0, str(ENTRYPOINT))
    smp.init({"microbatches": 2, "ddp": True, "auto_partition": False, "default_partition": 0, **config})
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    weight = sum(parameter.nbytes for parameter in layers.parameters())
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    model = smp.DistributedModel(layers)
    optimizer = smp.DistributedOptimizer(optimizer)
    if config.get("partitions", 1) > 1:
        smp.set_partition(layers[1], 1)

    @smp.step
    def train(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        model.backward(loss)
        return loss

    @smp.step
    def test(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        return loss

    loader = DataLoader(TensorDataset(torch.ones(BATCHES * BATCH, WIDTH)), BATCH)
    for (x,) in loader:
        optimizer.zero_grad()
        train(model, x)
        optimizer.step()
    with torch.no_grad():
        for (x,) in loader:
            test(model, x)
    smp.save_checkpoint(folder, "end", model=model, optimizer=optimizer)
    (x,) = next(iter(loader))
    optimizer.zero_grad()
    train(model, x)
    optimizer.step()
    return weight, "shoal_entrypoint.marks" in sys.modules


def lines(output: Path, rank: int) -> list[dict[str, Any]]:
    file = output / "profiler" / "steps" / f"algo-1-{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def marked(config: dict[str, Any], ranks: int, folder: Path) -> tuple[int, list[list[dict[str, Any]]]]:
    """Run the script, check what all its lines have in common, return what the gradients weigh, and the lines."""
    (folder / "output" / "profiler" / "steps").mkdir(parents=True)
    environment = {"SM_OUTPUT_DIR": str(folder / "output")}
    found = run_ranks(client, ranks, config, str(folder / "checkpoints"), env=environment)
    assert all(rank.report[1] for rank in found)
    told = [lines(folder / "output", rank) for rank in range(ranks)]
    for rank, own in enumerate(told):
        assert [(line["Rank"], line["Step"]) for line in own] == [(rank, step) for step in range(BATCHES + 1)]
        for line in own:
            parts = [line[name] for name in ("DataSeconds", "CollectiveSeconds", "CheckpointSeconds")]
            assert all(part >= 0 for part in parts)
            assert sum(parts) <= line["Seconds"] * (1 + 1e-9)
        # Saved after the last batch but one, evaluation between them is of no step.
        assert [line["CheckpointSeconds"] > 0 for line in own] == [False] * BATCHES + [True]
        assert all(line["DataSeconds"] > 0 for line in own)
    return found[0].report[0], told


def test_replicas_average_what_the_gradients_weigh(tmp_path: Path) -> None:
    weight, told = marked({}, 2, tmp_path)
    for own in told:
        assert [line["CollectiveBytes"] for line in own] == [weight] * (BATCHES + 1)
        assert all(line["Collectives"]["all_reduce"]["Bytes"] == weight for line in own)
        assert all(line["CollectiveSeconds"] > 0 for line in own)


def test_stages_wait_for_one_another(tmp_path: Path) -> None:
    _, told = marked({"partitions": 2}, 2, tmp_path)
    batch = BATCH * WIDTH * 4
    for own in told:
        assert all(line["CollectiveSeconds"] > 0 for line in own)
        # What each stage sends: activations, or their gradients, of the whole batch at least.
        assert all(line["Collectives"]["pipeline"]["Bytes"] >= batch for line in own)


def test_what_gathers_shards_is_not_taken_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "profiler" / "steps").mkdir(parents=True)
    config = {"shard_optimizer_state": True}
    run_ranks(client, 2, config, str(tmp_path / "checkpoints"), env={"SM_OUTPUT_DIR": str(tmp_path)})
    assert all("CollectiveSeconds" not in line for rank in range(2) for line in lines(tmp_path, rank))


def test_nothing_is_marked_where_nothing_is_measured(tmp_path: Path) -> None:
    found = run_ranks(client, 2, {"partitions": 2}, str(tmp_path / "checkpoints"), env={"SM_OUTPUT_DIR": str(tmp_path)})
    assert [rank.report[1] for rank in found] == [False, False]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
