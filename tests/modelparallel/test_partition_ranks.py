"""Placement on real ranks: what is decided is where modules run, delayed parameters appear there, losses stay right."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from partition_models import TRANSFORMERS, transformer
from smp_jobs import run_ranks
from torch import nn

SETTINGS = {"partitions": 2, "microbatches": 2}


class Net(nn.Module):
    """Layers with a tied head, a module without parameters, attention that reads its projection itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(4))
        )
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.layers(self.embedding(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Looped(nn.Module):
    """A list of modules run one after another by a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.head = nn.Linear(8, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class ByHand(nn.Module):
    """The last layers are created for partition 1."""

    def __init__(self) -> None:
        super().__init__()
        import smdistributed.modelparallel.torch as smp

        self.first = nn.Embedding(12, 8)
        with smp.partition(1) if smp.is_initialized() else contextlib.nullcontext():
            self.second = nn.Linear(8, 8)
            self.third = nn.Linear(8, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.third(self.second(self.first(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Transformer(nn.Module):
    """A Hugging Face model that returns its loss."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner = transformer(name, layers=4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=tokens, labels=tokens).loss  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Net": Net,
    "ByHand": ByHand,
    "Looped": Looped,
    **{name: partial(Transformer, name) for name in TRANSFORMERS},
}


def batches() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(4):
        yield torch.randint(0, 12, (4, 6), generator=generator)


def alone(name: str) -> list[float]:
    """Losses of a single process, whose batch is the same two micro-batches."""
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = torch.stack([model(part) for part in batch.chunk(2)]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def train(name: str, config: dict[str, Any], delayed: bool = False) -> dict[str, Any]:
    """On a rank: trains the model; returns the losses, who owns what, and what was logged and explained."""
    import smdistributed.modelparallel.torch as smp

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("smdistributed.modelparallel")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    smp.init(config)
    torch.manual_seed(0)
    with smp.delay_param_initialization(delayed):
        plain = MODELS[name]()
    memory = sum(parameter.numel() for parameter in plain.parameters() if not parameter.is_meta)
    # Before wrapping (statement 4): identity has to survive placing and delayed initialisation.
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    model = smp.DistributedModel(plain)
    optimizer = smp.DistributedOptimizer(optimizer)

    @smp.step
    def step(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        loss = model(tokens)
        model.backward(loss)
        return loss  # type: ignore[no-any-return]

    losses = []
    for batch in batches():
        optimizer.zero_grad()
        losses.append(float(step(model, batch).reduce_mean()))
        optimizer.step()
    explained = smp.explain(model).to_json() if smp.rank() == 0 else None
    return {
        "losses": losses,
        "owners": model.owners,
        "local": sum(parameter.numel() for parameter in model.local_parameters()),
        "before": memory,
        "log": lines,
        "explained": explained,
    }


def test_a_measured_job_is_told_of_lists_in_sequence(tmp_path: Path) -> None:
    """Where `train` measures, a file says which nn.ModuleLists cost a way back each (C12); elsewhere there is none."""
    elsewhere, measured = tmp_path / "elsewhere", tmp_path / "measured"
    elsewhere.mkdir()
    (measured / "profiler").mkdir(parents=True)
    run_ranks(train, 2, "Looped", SETTINGS, env={"SM_OUTPUT_DIR": str(elsewhere)})
    assert list(elsewhere.iterdir()) == []
    run_ranks(train, 2, "Looped", SETTINGS, env={"SM_OUTPUT_DIR": str(measured)})
    told = json.loads((measured / "profiler" / "smp" / "placement.json").read_text())
    assert told == {"Traced": True, "ModuleListsInSequence": [{"Name": "blocks", "Modules": 6, "Ranks": [0, 1]}]}


@pytest.mark.parametrize("delayed", [False, True])
def test_automatic(delayed: bool) -> None:
    """Statement 29: traced, placed and logged in the first step; losses are those of one process, also with delay."""
    ranks = [rank.report for rank in run_ranks(train, 2, "Net", SETTINGS, delayed)]
    expected = alone("Net")
    for report in ranks:
        assert report["losses"] == pytest.approx(expected, rel=1e-6)
        assert report["owners"] == ranks[0]["owners"]
        assert report["before"] == (0 if delayed else sum(p.numel() for p in Net().parameters()))
    owners = ranks[0]["owners"]
    assert [owners[f"layers.{index}"] for index in range(4)] == [0, 0, 1, 1]
    assert owners["head"] == owners["embedding"] == 0
    assert sum(report["local"] for report in ranks) == sum(p.numel() for p in Net().parameters())
    logged = [line for line in ranks[0]["log"] if line.startswith("Partition assignments:")]
    assert len(logged) == 1
    assert "layers.2.*: 1" in logged[0]
    explained = json.loads(ranks[0]["explained"])
    assert explained["ranks"] == owners
    assert explained["rows"][0]["parameter_bytes"] == 4 * sum(p.numel() for p in Net().parameters())


@pytest.mark.parametrize("delayed", [False, True])
def test_by_hand(delayed: bool) -> None:
    """Statements 2, 10 and C2 on ranks: contexts decide, and delay works with them."""
    config = {**SETTINGS, "auto_partition": False, "default_partition": 0}
    ranks = [rank.report for rank in run_ranks(train, 2, "ByHand", config, delayed)]
    assert ranks[1]["owners"] == {"": 0, "first": 0, "second": 1, "third": 1}
    for report in ranks:
        assert report["losses"] == pytest.approx(alone("ByHand"), rel=1e-6)


def test_skipped_trace_and_saved_decision(tmp_path: Path) -> None:
    """Statement 30: without a trace; the file of one job places the next one, which would decide otherwise."""
    file = tmp_path / "partition.json"
    writing = {**SETTINGS, "skip_tracing": True, "partition_file": str(file)}
    first = run_ranks(train, 2, "Net", writing)[0].report
    document = json.loads(file.read_text())
    assert document["assignments"] == first["owners"]
    document["assignments"].update({name: 1 for name in document["assignments"] if name.startswith("layers.1")})
    file.write_text(json.dumps(document))
    reading = {**SETTINGS, "load_partition": True, "partition_file": str(file)}
    second = run_ranks(train, 2, "Net", reading)[1].report
    assert second["owners"] == document["assignments"]
    assert second["losses"] == pytest.approx(alone("Net"), rel=1e-6)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_with_delayed_parameters(name: str) -> None:
    """Hugging Face models, traced without values, initialised on two ranks: losses of one process that was eager."""
    ranks = [rank.report for rank in run_ranks(train, 2, name, SETTINGS, True)]
    assert set(ranks[0]["owners"].values()) == {0, 1}
    for report in ranks:
        assert report["before"] == 0
        assert report["losses"] == pytest.approx(alone(name), rel=2e-6)


def train_cut(config: dict[str, Any]) -> tuple[list[float], list[str], dict[str, int]]:
    """On a rank: layers that tensor parallelism cuts, and one that it does not, made by model_creation."""
    import smdistributed.modelparallel.torch as smp

    smp.init(config)
    torch.manual_seed(0)
    with smp.model_creation(tensor_parallelism=True):
        plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8))
    waiting = [name for name, parameter in plain.named_parameters() if parameter.is_meta]
    model = smp.DistributedModel(plain)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - x).pow(2).mean()
        model.backward(loss)
        return loss  # type: ignore[no-any-return]

    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        losses.append(float(step(model, torch.eye(8)[:4]).reduce_mean()))
        optimizer.step()
    return losses, waiting, model.owners


def test_model_creation_with_tensor_parallelism() -> None:
    """Tensor and pipeline parallelism with delayed parameters: traced on one rank alone, trained by all four."""
    config = {**SETTINGS, "tensor_parallel_degree": 2, "ddp": True, "delayed_parameter_initialization": True}
    reports = [rank.report for rank in run_ranks(train_cut, 4, config)]
    losses, waiting, owners = reports[0]
    assert len(waiting) == 10
    assert set(owners.values()) == {0, 1}
    assert losses[-1] < losses[0]
    for report in reports:
        assert report[0] == pytest.approx(losses, rel=1e-6)
        assert report[2] == owners


def evaluate_within(budget: int, delayed: bool) -> str:
    """On a rank: makes a model of 512 MiB and runs it, with `budget` bytes of memory beyond what the process has."""
    import resource

    import smdistributed.modelparallel.torch as smp

    smp.init(SETTINGS)
    status = Path("/proc/self/status").read_text()
    used = int(status.split("VmData:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + budget, resource.RLIM_INFINITY))
    try:
        with smp.delay_param_initialization(delayed):
            sizes = [2048, 4096] * 8
            plain = nn.Sequential(
                *(nn.Linear(a, b, bias=False) for a, b in zip(sizes, [*sizes[1:], 2048], strict=True))
            )
        model = smp.DistributedModel(plain)

        @smp.step
        def step(model: Any, x: torch.Tensor) -> torch.Tensor:
            return model(x).sum()  # type: ignore[no-any-return]

        with torch.no_grad():
            total = step(model, torch.ones(2, 2048)).reduce_mean()
        owned = sum(parameter.untyped_storage().nbytes() for parameter in model.local_parameters())
    except (RuntimeError, MemoryError) as error:
        return "does not fit" if "alloc" in str(error) else f"{type(error).__name__}: {error}"
    return f"{owned >> 20} MiB owned, {'finite' if torch.isfinite(total) else 'wrong'}"


def test_a_model_larger_than_the_memory_of_a_rank() -> None:
    """512 MiB of parameters, 400 MiB for each of two ranks: does not fit eagerly, runs with delayed initialisation."""
    eager = run_ranks(evaluate_within, 2, 400 << 20, False)
    assert [rank.report for rank in eager] == ["does not fit"] * 2
    late = run_ranks(evaluate_within, 2, 400 << 20, True)
    assert [rank.report for rank in late] == ["256 MiB owned, finite"] * 2
