"""Placement by hand, and decisions that are saved and used again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import partition_models as models
import pytest
import torch
from smdistributed.modelparallel.torch import config
from smdistributed.modelparallel.torch.exceptions import (
    NotInitializedError,
    SMPConfigError,
    SMPUnsupportedError,
    SMPValueError,
)
from smdistributed.modelparallel.torch.partition import decide, encoded, partition, reuse, set_partition
from smdistributed.modelparallel.torch.state import state
from torch import nn

MANUAL = {"pipeline_parallel_degree": 3, "auto_partition": False, "default_partition": 0}


@pytest.fixture
def cfg(monkeypatch: pytest.MonkeyPatch) -> Iterator[config.Config]:
    """A library that is initialized for three partitions by hand, as far as placement needs it."""
    made = config.from_values(MANUAL)
    monkeypatch.setattr(state, "initialized", True)
    monkeypatch.setattr(state, "cfg", made, raising=False)
    yield made
    reuse(None)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with partition(1):
            self.a = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
            with partition(2):
                self.b = nn.Linear(2, 2)
            self.c = nn.Linear(2, 2)
        self.d = nn.Linear(2, 2)


def test_contexts(cfg: config.Config) -> None:
    """Statements 10 and C2: created inside goes there, the innermost wins, the rest goes to the default."""
    assert decide(Nested(), None, cfg) == {"": 0, "a": 1, "a.0": 1, "a.1": 1, "b": 2, "c": 1, "d": 0}
    original = nn.Module.__init__
    assert "_smp_partition" not in nn.Linear(1, 1).__dict__
    assert original is nn.Module.__init__


def test_default_partition(cfg: config.Config) -> None:
    other = config.from_values({**MANUAL, "default_partition": 2})
    ranks = decide(Nested(), None, other)
    assert (ranks[""], ranks["d"], ranks["c"]) == (2, 2, 1)


def test_auto_ignores_contexts(cfg: config.Config) -> None:
    """Statements 10 and C2: with auto_partition the contexts are without effect."""
    automatic = config.from_values({"pipeline_parallel_degree": 3})
    model = Nested()
    plain = copy.deepcopy(model)
    for module in plain.modules():
        module.__dict__.pop("_smp_partition", None)
    assert decide(model, None, automatic) == decide(plain, None, automatic)


def test_marks_survive_copies(cfg: config.Config) -> None:
    with partition(1):
        layer = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert set(decide(encoder, None, cfg).values()) == {1}


def test_set_partition(cfg: config.Config) -> None:
    """An existing module goes with all in it; a later call wins."""
    model = models.Tied(blocks=3)
    for index, block in enumerate(model.blocks):
        set_partition(block, index)
    set_partition(model.blocks[0], 2)
    ranks = decide(model, None, cfg)
    assert [ranks[f"blocks.{index}"] for index in range(3)] == [2, 1, 2]
    assert ranks["embedding"] == ranks["head"] == 0


def test_a_context_that_fails_leaves_nothing(cfg: config.Config) -> None:
    with pytest.raises(ZeroDivisionError), partition(1):
        raise ZeroDivisionError
    assert "_smp_partition" not in nn.Linear(1, 1).__dict__


def test_shared_parameters_cannot_be_divided(cfg: config.Config) -> None:
    """Statement 23: the error says which modules, which partitions, and what to do."""
    model = models.Tied()
    set_partition(model.head, 1)
    with pytest.raises(
        SMPValueError, match=r"'embedding' \(partition 0\) and .*'head' \(partition 1\) share .*'weight'"
    ):
        decide(model, None, cfg)


def test_attention_cannot_be_divided(cfg: config.Config) -> None:
    model = nn.MultiheadAttention(4, 2)
    set_partition(model.out_proj, 1)
    with pytest.raises(SMPValueError, match=r"MultiheadAttention uses the parameters inside it"):
        decide(model, None, cfg)


@pytest.mark.parametrize("index", [-1, 3, 1.0, "1", None, True])
def test_no_such_partition(cfg: config.Config, index: Any) -> None:
    with pytest.raises(SMPValueError, match=r"partition.*0 to 2"), partition(index):
        pass
    with pytest.raises(SMPValueError, match="0 to 2"):
        set_partition(nn.Linear(1, 1), index)


def test_wrong_use(cfg: config.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is needed; a placed model cannot be placed again; init comes first."""
    with pytest.raises(SMPValueError, match=r"it must be an nn\.Module"):
        set_partition("layer", 1)  # type: ignore[arg-type]

    class Placed:
        partitioned = True

    monkeypatch.setattr(state, "model", Placed())
    with pytest.raises(SMPUnsupportedError, match="and the first step"):
        set_partition(nn.Linear(1, 1), 1)
    monkeypatch.setattr(state, "initialized", False)
    with pytest.raises(NotInitializedError), partition(0):
        pass


def test_a_saved_decision_is_used_again(cfg: config.Config, tmp_path: Path) -> None:
    """partition_file is written, load_partition reads it, marks no longer matter."""
    file = tmp_path / "placed" / "partition.json"
    writing = config.from_values({**MANUAL, "partition_file": str(file)})
    ranks = decide(Nested(), None, writing)
    assert json.loads(file.read_text())["assignments"] == ranks
    assert [path.name for path in file.parent.iterdir()] == ["partition.json"]
    reading = config.from_values(
        {"pipeline_parallel_degree": 3, "partition_file": str(file), "load_partition": True},
    )
    assert decide(Nested(), None, reading) == ranks


def test_a_decision_of_a_checkpoint(cfg: config.Config) -> None:
    """Statement 33: what was saved wins, as often as it is asked for, until it is taken back."""
    model = models.chain([2, 2, 2])
    document = json.loads(json.dumps(encoded({"": 0, "0": 2, "1": 1}, model, 3)))
    reuse(document)
    assert decide(model, None, cfg) == {"": 0, "0": 2, "1": 1}
    reuse(None)
    assert set(decide(model, None, cfg).values()) == {0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pipeline_parallel_degree": 2}, "for pipeline_parallel_degree 2 and the job has 3"),
        ({"version": 7}, "version 7"),
        ({"assignments": {"": 0, "x": 1}}, r"another model .*'0'.*'x'"),
        ({"assignments": {"": 0, "0": 5, "1": 0}}, "do not exist"),
    ],
)
def test_a_decision_that_does_not_fit(cfg: config.Config, change: dict[str, Any], message: str) -> None:
    model = models.chain([2, 2, 2])
    reuse({**encoded({"": 0, "0": 2, "1": 1}, model, 3), **change})
    with pytest.raises(SMPConfigError, match=message):
        decide(model, None, cfg)


def test_files_that_are_no_decision(cfg: config.Config, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    loading = config.from_values({**MANUAL, "partition_file": str(file), "load_partition": True})
    model = nn.Linear(1, 1)
    with pytest.raises(SMPConfigError, match="cannot be read"):
        decide(model, None, loading)
    for text, message in (("[", "is not JSON"), ("[]", "holds no partition")):
        file.write_text(text)
        with pytest.raises(SMPConfigError, match=message):
            decide(model, None, loading)


def test_threads_have_contexts_of_their_own(cfg: config.Config) -> None:
    import threading

    made: list[nn.Module] = []
    with partition(1):
        thread = threading.Thread(target=lambda: made.append(nn.Linear(1, 1)))
        thread.start()
        thread.join()
        inside = nn.Linear(1, 1)
    assert "_smp_partition" not in made[0].__dict__
    assert inside.__dict__["_smp_partition"] == 1
    assert torch.is_tensor(made[0].weight)
