"""Offload of checkpointed inputs. A second device is played by the host itself, so that copies and order are real."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch
from smdistributed.modelparallel.torch import config, set_activation_checkpointing
from smdistributed.modelparallel.torch.activation import offload
from smdistributed.modelparallel.torch.state import state
from torch import nn


@pytest.fixture
def cfg(monkeypatch: pytest.MonkeyPatch) -> config.Config:
    given = config.from_values({"offload_activations": True, "microbatches": 2, "activation_loading_horizon": 2})
    monkeypatch.setattr(state, "cfg", given, raising=False)
    offload._said.clear()
    return given


def model() -> nn.Sequential:
    torch.manual_seed(1)
    made = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)) for _ in range(5)))
    set_activation_checkpointing(made)
    return made


def gradients() -> list[torch.Tensor]:
    one = model()
    torch.manual_seed(2)
    one(torch.randn(3, 4, requires_grad=True)).sum().backward()
    return [p.grad for p in one.parameters() if p.grad is not None]


def test_statement_42_inputs_go_to_the_host_and_come_back_ahead_of_the_backward_pass(
    cfg: config.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients()
    events: list[str] = []
    made: list[offload.Offloaded] = []
    monkeypatch.setattr(offload, "on_host", lambda _: False)
    begin, load = offload.Offloaded.__init__, offload.Offloaded.load
    start = offload.Offloaded.start_loading

    def created(self: offload.Offloaded, tensor: torch.Tensor, before: offload.Offloaded | None) -> None:
        begin(self, tensor, before)
        made.append(self)
        events.append(f"out {len(made) - 1}")

    def started(self: offload.Offloaded) -> None:
        if self.back is None:
            events.append(f"back {made.index(self)}")
        start(self)

    def loaded(self: offload.Offloaded, horizon: int) -> torch.Tensor:
        events.append(f"use {made.index(self)}")
        return load(self, horizon)

    monkeypatch.setattr(offload.Offloaded, "__init__", created)
    monkeypatch.setattr(offload.Offloaded, "start_loading", started)
    monkeypatch.setattr(offload.Offloaded, "load", loaded)
    found = gradients()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert events == [
        *["out 0", "out 1", "out 2", "out 3", "out 4"],
        *["use 4", "back 4", "back 3", "back 2"],
        *["use 3", "back 1", "use 2", "back 0", "use 1", "use 0"],
    ]


def test_on_a_cpu_nothing_is_moved_and_that_is_said_once(
    cfg: config.Config, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload.Offloaded, "__init__", lambda *_: pytest.fail("a tensor was moved"))
    with caplog.at_level(logging.WARNING):
        gradients()
        gradients()
    assert [record.message for record in caplog.records] == [
        "smp: offload_activations moves tensors to the host: on a CPU they are there already, nothing is moved"
    ]


def test_statement_42_one_microbatch_offloads_nothing(
    cfg: config.Config, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "cfg", dataclasses.replace(cfg, microbatches=1))
    monkeypatch.setattr(offload, "on_host", lambda _: False)
    monkeypatch.setattr(offload.Offloaded, "__init__", lambda *_: pytest.fail("a tensor was moved"))
    with caplog.at_level(logging.WARNING):
        gradients()
    assert "has no effect with 1 micro-batch" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_offloading_frees_device_memory(cfg: config.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept() -> int:
        one = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).cuda()
        set_activation_checkpointing(one)
        before = torch.cuda.memory_allocated()
        out = one(torch.randn(4096, 512, device="cuda", requires_grad=True))
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
        out.sum().backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in one.parameters())
        return held

    offloaded = kept()
    monkeypatch.setattr(state, "cfg", dataclasses.replace(cfg, offload_activations=False))
    assert offloaded < kept() / 2
