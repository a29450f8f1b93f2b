"""Full checkpoint files: translation of names, tied parameters, files of other writers. In one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from smdistributed.modelparallel.torch.checkpoint import full
from smdistributed.modelparallel.torch.checkpoint.saving import _translated
from smdistributed.modelparallel.torch.exceptions import CheckpointError
from smdistributed.modelparallel.torch.state import state
from torch import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def prefixed(prefix: str, whole: dict[str, Any]) -> dict[str, Any]:
    return {prefix + name: value for name, value in whole.items()}


def stripped(prefix: str, whole: dict[str, Any]) -> dict[str, Any]:
    assert all(name.startswith(prefix) for name in whole)
    return {name[len(prefix) :]: value for name, value in whole.items()}


def test_translations_are_undone_in_reverse_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """smp.state.module_manager.translate_functions: (to the client's names, to ours) for each kind of module."""
    pairs = [(lambda whole, p=p: prefixed(p, whole), lambda whole, p=p: stripped(p, whole)) for p in ("a.", "b.")]
    monkeypatch.setattr(state.module_manager, "translate_functions", pairs)
    ours = nn.Linear(2, 2).state_dict()
    theirs = _translated(dict(ours))
    assert list(theirs) == ["b.a.weight", "b.a.bias"]
    torch.save(theirs, tmp_path / "full")
    found, content = full.read(tmp_path, "full", None)
    assert content is None
    assert list(found) == list(ours)
    chosen, _ = full.read(tmp_path, "full", lambda whole: prefixed("c.", whole))
    assert list(chosen) == ["c.b.a.weight", "c.b.a.bias"]


def test_a_name_that_a_writer_left_out_of_a_tied_pair_is_filled_in() -> None:
    module = Tied()
    whole = {"embedding.weight": torch.ones(5, 3)}
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*head"):
        module.load_state_dict(whole)
    module.load_state_dict(full.with_tied(whole, module), strict=True)
    assert torch.equal(module.head.weight, torch.ones(5, 3))
    assert list(whole) == ["embedding.weight"]


def test_the_trainers_safetensors_stand_for_its_pytorch_file(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"weight": torch.arange(3.0)}, str(tmp_path / "model.safetensors"))
    found, _ = full.read(tmp_path, "pytorch_model.bin", None)
    assert torch.equal(found["weight"], torch.arange(3.0))


def test_the_mark_of_a_part_is_no_parameter(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1), "_smp_is_partial": False}, tmp_path / "full")
    assert list(full.read(tmp_path, "full", None)[0]) == ["weight"]


def test_what_is_no_full_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "a_partial").mkdir()
    with pytest.raises(CheckpointError, match="is not a full checkpoint, which is one file: pass partial=True"):
        full.read(tmp_path, "a", None)
    torch.save([1], tmp_path / "list")
    with pytest.raises(CheckpointError, match="holds a list, not the state_dict of a model"):
        full.read(tmp_path, "list", None)
    with pytest.raises(CheckpointError, match=r"cannot read .*none: No such file"):
        full.read(tmp_path, "none", None)
