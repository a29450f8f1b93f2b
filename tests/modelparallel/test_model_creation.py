"""smp.model_creation: dtype, delay and tensor parallelism in one context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from smdistributed.modelparallel.torch import config
from smdistributed.modelparallel.torch.exceptions import NotInitializedError, SMPValueError
from smdistributed.modelparallel.torch.partition import materialise, model_creation
from smdistributed.modelparallel.torch.state import state
from torch import nn


@pytest.fixture
def initialized(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def start(**given: Any) -> None:
        monkeypatch.setattr(state, "initialized", True)
        monkeypatch.setattr(state, "cfg", config.from_values(given), raising=False)

    return start


def test_model_creation(initialized: Callable[..., None]) -> None:
    """C7: the dtype holds inside; delay follows the configuration; unknown options of clients do no harm."""
    initialized()
    with model_creation(dtype=torch.bfloat16, zero_init=True, attention_in_fp32=False):
        model = nn.Linear(2, 2)
    assert model.weight.dtype == torch.bfloat16
    assert not model.weight.is_meta
    assert torch.get_default_dtype() == torch.float32
    initialized(delayed_parameter_initialization=True)
    with model_creation(dtype=torch.float16):
        late = nn.Linear(2, 2)
    assert late.weight.is_meta
    materialise(late, [""])
    assert late.weight.dtype == torch.float16
    with pytest.raises(SMPValueError, match="dtype"), model_creation(dtype=torch.int8):
        pass


def test_model_creation_needs_init() -> None:
    if state.initialized:
        pytest.skip("another test of this process initialized the library")
    with pytest.raises(NotInitializedError), model_creation():
        pass
