"""Automatic placement: what always holds, and what comes out for models whose best placement is known."""

from __future__ import annotations

from typing import Any

import partition_models as models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from smdistributed.modelparallel.torch import config
from smdistributed.modelparallel.torch.partition import decide, delay_param_initialization, format_assignments, trace
from smdistributed.modelparallel.torch.partition.algorithm import fullest, place
from smdistributed.modelparallel.torch.partition.tree import build
from torch import nn


def settings_of(devices: int, **given: Any) -> config.Config:
    return config.from_values({"pipeline_parallel_degree": devices, **given})


def placed(module: nn.Module, x: torch.Tensor, devices: int, **given: Any) -> dict[str, int]:
    return decide(module, trace(module, lambda: module(x)), settings_of(devices, **given))


@given(st.integers(0, 10_000), st.integers(1, 6), st.booleans())
@settings(max_examples=120, deadline=None)
def test_what_always_holds(seed: int, devices: int, with_trace: bool) -> None:
    """Every module has a rank, shared parameters one (statement 23), no device is idle that could have work, and a
    module without parameters is where its parent or the sibling before it is (statement 25).
    """
    model = models.random_model(seed)
    found = trace(model, lambda: model(torch.zeros(2, 4))) if with_trace else None
    ranks = decide(model, found, settings_of(devices))
    assert set(ranks) == {name for name, _ in model.named_modules(remove_duplicate=False)}
    holders: dict[int, int] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            assert holders.setdefault(id(parameter), ranks[name]) == ranks[name]
        if name and not list(module.parameters()):
            assert ranks[name] == ranks[name.rpartition(".")[0]] or isinstance(module, nn.Tanh)
    tree = build(model, found, 0.5)
    assert sum(tree.cost.values()) == pytest.approx(1.0 if any(True for _ in model.parameters()) or found else 0.0)
    units = len(set(tree.unit.values()))
    assert len(set(ranks.values())) == min(devices, units)
    assert ranks[""] == 0


@given(st.integers(0, 10_000), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_no_worse_than_one_device_holding_its_heaviest_unit_and_a_share(seed: int, devices: int) -> None:
    """Of consecutive segments the fullest holds at most an even share and one unit, but for the slack."""
    model = models.random_model(seed)
    tree = build(model, trace(model, lambda: model(torch.zeros(2, 4))), 0.5)
    heaviest: dict[str, float] = {}
    for part, unit in tree.unit.items():
        heaviest[unit] = heaviest.get(unit, 0.0) + tree.cost[part]
    assert fullest(tree, place(tree, devices)) <= (1 / devices + max(heaviest.values())) * 1.1 + 1e-9


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_equal_layers_are_divided_evenly(devices: int) -> None:
    model = models.chain([16] * 13)
    ranks = placed(model, torch.zeros(2, 16), devices)
    per_rank = [sum(ranks[str(index)] == rank for index in range(12)) for rank in range(devices)]
    assert per_rank == [12 // devices] * devices
    assert [ranks[str(index)] for index in range(12)] == sorted(ranks[str(index)] for index in range(12))


def test_a_heavy_leaf_wastes_no_device() -> None:
    """One layer with most of the cost gets one device, and the others share the rest."""
    model = nn.Sequential(nn.Linear(8, 4096), nn.Linear(4096, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    ranks = placed(model, torch.zeros(2, 8), 4, memory_weight=1.0)
    assert [ranks[str(index)] for index in range(4)] == [0, 1, 2, 3]


def test_memory_weight_moves_the_cut() -> None:
    """Many parameters but little work in front, few parameters but much work behind."""

    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4000, 16)
            self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(self.table(x))  # type: ignore[no-any-return]

    model, tokens = Uneven(), torch.zeros(4, 8, dtype=torch.long)
    by_memory = placed(model, tokens, 2, memory_weight=1.0)
    by_compute = placed(model, tokens, 2, memory_weight=0.0)
    assert by_memory["layers.0"] == 1
    assert [by_compute[f"layers.{index}"] for index in range(8)] == [0] * 4 + [1] * 4


def test_blocks_are_not_divided_for_little() -> None:
    """A model whose embedding makes the first rank a little fuller is cut between its blocks all the same."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x))  # type: ignore[no-any-return]

    model = nn.Sequential(nn.Embedding(20, 16), *(Block() for _ in range(8)))
    ranks = placed(model, torch.zeros(4, 8, dtype=torch.long), 4)
    assert [ranks[str(index)] for index in range(1, 9)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(ranks[f"{index}.two"] == ranks[str(index)] for index in range(1, 9))


def test_shared_weights_stay_together() -> None:
    """Statement 23: the head that shares its weight with the embedding is where the embedding is."""
    ranks = placed(models.Tied(blocks=6), torch.zeros(2, 5, dtype=torch.long), 3)
    assert ranks["embedding"] == ranks["head"] == 0
    assert {ranks[f"blocks.{index}"] for index in range(6)} == {0, 1, 2}


def test_borrowed_weights_stay_with_the_borrower() -> None:
    model = models.Borrowing()
    ranks = placed(model, torch.zeros(2, 6), 3)
    assert ranks["borrowed"] == ranks[""] == 0
    assert set(ranks.values()) == {0, 1, 2}


def test_modules_that_did_not_run() -> None:
    """One that never ran stays with the module around it; experts whose sibling ran are free to go elsewhere."""
    model = models.Routed()
    ranks = placed(model, torch.zeros(4, 5), 4)
    assert ranks["unused"] == ranks[""]
    assert {ranks[f"experts.{index}"] for index in range(3)} != {0}
    assert ranks["noise"] == ranks[""], "statement 25"


def test_attention_is_not_divided() -> None:
    """torch's attention reads its output projection's weight itself, with or without a trace."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    for found in (trace(model, lambda: model(torch.zeros(2, 3, 8))), None):
        ranks = decide(model, found, settings_of(4))
        for index in range(4):
            inside = {rank for name, rank in ranks.items() if name.startswith(f"layers.{index}")}
            assert inside == {index}


def test_compiled_modules_are_not_divided(caplog: pytest.LogCaptureFixture) -> None:
    """What torch.compile made of a module does not call the modules inside; the ranks without work are warned of."""
    x = torch.zeros(2, 4)
    compiled: list[Any] = [torch.compile(models.chain([4, 4, 4]), backend="eager") for _ in range(2)]
    wrapped = nn.Sequential(*compiled)
    ranks = placed(wrapped, x, 2)
    assert all(rank == int(name[0]) for name, rank in ranks.items() if name)
    whole = models.chain([4] * 5)
    whole.compile(backend="eager")
    assert set(placed(whole, x, 2).values()) == {0}
    assert "rank(s) 1 have nothing to do" in caplog.text


def test_statement_25_without_parameters_where_the_parent_is() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.activation, self.two = nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.activation(self.one(x)))  # type: ignore[no-any-return]

    ranks = placed(nn.Sequential(Block(), Block(), Block()), torch.zeros(2, 4), 3)
    assert (
        [ranks[f"{index}.activation"] for index in range(3)] == [ranks[str(index)] for index in range(3)] == [0, 1, 2]
    )


def test_activations_of_a_sequential_stay_where_their_input_is() -> None:
    """Statement 25 refined: in nn.Sequential what has no parameters follows the module before it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    ranks = placed(model, torch.zeros(2, 4), 2)
    assert [ranks[str(index)] for index in range(4)] == [0, 0, 1, 1]


def test_aliases_are_listed() -> None:
    """A module that is registered twice is placed once and listed under both names."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Linear(4, 4), shared)
    ranks = placed(model, torch.zeros(1, 4), 2)
    assert ranks["2"] == ranks["0"]


def test_no_trace_and_one_rank() -> None:
    """Statement 30 (skip_tracing): parameters in the order of declaration; pp 1: all on rank 0."""
    model = models.chain([16] * 9)
    ranks = decide(model, None, settings_of(2))
    assert [ranks[str(index)] for index in range(8)] == [0] * 4 + [1] * 4
    assert set(decide(model, None, settings_of(1)).values()) == {0}


def test_a_model_without_parameters() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    assert placed(model, torch.zeros(2, 2), 2) == {"": 0, "0": 0, "1": 0}


def test_the_log_text() -> None:
    """Statement 29, section 1.3: the text starts with the documented words and names every cut."""
    ranks = placed(models.chain([16] * 5), torch.zeros(2, 16), 2)
    lines = format_assignments(ranks).splitlines()
    assert lines[0] == "Partition assignments:"
    assert lines[1:] == ["  main: 0", "  0: 0", "  1: 0", "  2: 1", "  3: 1"]
    assert format_assignments({"": 1, "a": 1, "a.b": 1}) == "Partition assignments:\n  main.*: 1"


@pytest.mark.parametrize("name", models.TRANSFORMERS)
def test_transformers(name: str) -> None:
    """Hugging Face models: all ranks used, and the same ranks whether the parameters have values or are on meta."""
    torch.manual_seed(0)
    model = models.transformer(name, layers=4)
    with delay_param_initialization():
        late = models.transformer(name, layers=4)
    tokens = torch.arange(3, 13).reshape(2, 5)
    found = trace(model, lambda: model(input_ids=tokens, labels=tokens))
    imagined = trace(late, lambda: late(input_ids=tokens, labels=tokens))
    assert found is not None
    assert imagined is not None
    assert imagined.order == found.order
    for devices in (2, 3, 4):
        ranks = decide(model, found, settings_of(devices))
        assert set(ranks.values()) == set(range(devices))
        assert ranks[""] == 0
        assert decide(late, imagined, settings_of(devices)) == ranks
