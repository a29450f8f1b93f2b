"""Delayed initialisation: no memory before, the values of an eager run after, on whichever rank owns what."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from partition_models import TRANSFORMERS, transformer
from smdistributed.modelparallel.torch.exceptions import (
    SMPError,
    SMPUnsupportedError,
    SMPValueError,
)
from smdistributed.modelparallel.torch.partition import delayed_init
from smdistributed.modelparallel.torch.partition.delayed_init import delay_param_initialization, materialise
from smp_jobs import clean_environment
from torch import nn


class Initialisers(nn.Module):
    """Ways to initialise: arithmetic, every kind of torch.nn.init, `.data`, slices, a generator, copies."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = nn.Parameter(torch.randn(5, 5) * 0.1)
        self.one, self.two, self.three = (nn.Linear(5, 5) for _ in range(3))
        nn.init.orthogonal_(self.one.weight)
        nn.init.trunc_normal_(self.one.bias)
        nn.init.sparse_(self.two.weight, 0.5)
        self.two.weight.data[0].zero_()
        self.two.bias.data = torch.arange(5.0)
        self.three.weight.data.copy_(torch.eye(5))
        generator = torch.Generator().manual_seed(4)
        nn.init.normal_(self.three.bias, generator=generator)
        self.table = nn.Embedding(4, 5, padding_idx=0)
        nn.init.uniform_(self.table.weight[1:3], generator=generator)
        self.list = nn.ParameterList([torch.ones(2), torch.zeros(3)])
        self.copied = copy.deepcopy(self.one)
        self.part = nn.Parameter(torch.rand(4, 6)[1:3, 2:])


class Buffers(nn.Module):
    """Buffers that a constructor computes, one of them from a parameter, and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)))
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("first", self.linear.weight.detach().clone())
        self.rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv2d(4, 4, 3), nn.BatchNorm1d(4)),
    "attention": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "recurrent": lambda: nn.LSTM(3, 4, 2),
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
    "initialisers": Initialisers,
    "buffers": Buffers,
    **{
        name: (lambda name=name: transformer(name))  # type: ignore[misc]
        for name in TRANSFORMERS
    },
}


def delayed(make: Callable[[], nn.Module], seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    with delay_param_initialization():
        return make()


@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_an_eager_run(name: str) -> None:
    """Bit for bit, whoever owns what: modules get their values in two goes, the later half first."""
    torch.manual_seed(1)
    eager = MODELS[name]()
    model = delayed(MODELS[name])
    assert all(parameter.is_meta for parameter in model.parameters())
    objects = {key: id(value) for key, value in model.named_parameters()}
    before = torch.get_rng_state()
    names = [key for key, _ in model.named_modules()]
    for part in (names[len(names) // 2 :], names[: len(names) // 2]):
        materialise(model, part)
    assert torch.equal(torch.get_rng_state(), before)
    found, expected = model.state_dict(), eager.state_dict()
    assert list(found) == list(expected)
    different = [key for key in found if not torch.equal(found[key], expected[key])]
    assert different == []
    assert {key: id(value) for key, value in model.named_parameters()} == objects
    assert [parameter.requires_grad for parameter in model.parameters()] == [
        parameter.requires_grad for parameter in eager.parameters()
    ]


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "recurrent"])
def test_the_model_trains(name: str) -> None:
    """An optimizer that was built before sees the values; the loss is that of the eager model."""
    torch.manual_seed(1)
    eager = MODELS[name]()
    model = delayed(MODELS[name])
    losses = []
    for each in (eager, model):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        if each is model:
            materialise(each, [key for key, _ in each.named_modules()])
        torch.manual_seed(7)  # for dropout
        for _ in range(2):
            optimizer.zero_grad()
            if name == "recurrent":
                loss = each(torch.ones(2, 1, 3))[0].sum()
            else:
                tokens = torch.arange(10).reshape(2, 5)
                loss = each(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[:2] == losses[2:]
    assert losses[0] != losses[1]


def test_a_seed_inside_the_context() -> None:
    with delay_param_initialization():
        torch.manual_seed(11)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    materialise(model, ["1"])
    torch.manual_seed(11)
    eager = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    assert torch.equal(model.get_parameter("1.weight"), eager.get_parameter("1.weight"))


def test_others_stay_without_memory() -> None:
    model = delayed(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)))
    materialise(model, ["1"])
    assert [parameter.is_meta for parameter in model.parameters()] == [True, True, False, False]
    assert delayed_init.is_delayed(model)


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.table.weight

    model = delayed(Tied)
    materialise(model, ["head"])
    assert isinstance(model, Tied)
    assert model.head.weight is model.table.weight
    assert not model.table.weight.is_meta


def test_a_seed_for_each_draw() -> None:
    """Inexact: right distribution, the same values whoever owns what and whatever else is made, other draws differ."""

    def make() -> nn.Module:
        return nn.Sequential(*(nn.Linear(200, 200) for _ in range(3)))

    one, other = delayed(make), delayed(make)
    materialise(one, ["0", "1", "2"], exact=False)
    materialise(other, ["1"], exact=False)
    weights = [one.get_parameter(f"{key}.weight") for key in "012"]
    assert torch.equal(weights[1], other.get_parameter("1.weight"))
    assert not torch.equal(weights[0], weights[1])
    bound = 1 / 200**0.5
    for weight in weights:
        assert weight.abs().max() <= bound
        assert float(weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    different = delayed(make, seed=2)
    materialise(different, ["1"], exact=False)
    assert not torch.equal(weights[1], different.get_parameter("1.weight"))


def test_what_comes_from_elsewhere_is_kept() -> None:
    """Values of NumPy arrays cannot be made again: as a parameter they stay, as a source they count."""
    table = np.arange(6, dtype=np.float32).reshape(2, 3)

    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.given = nn.Parameter(torch.from_numpy(table))
            self.layer = nn.Linear(3, 2, bias=False)
            with torch.no_grad():
                self.layer.weight.copy_(torch.from_numpy(table))

    model = delayed(Given)
    assert isinstance(model, Given)
    assert not model.given.is_meta
    assert model.layer.weight.is_meta
    materialise(model, ["layer"])
    assert torch.equal(model.layer.weight, model.given)


def test_an_initialiser_that_looks_at_values() -> None:
    """Rejection: draws again while the largest value is too large, as often as an eager run does."""

    class Rejecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.drawn = 0
            while not self.drawn or self.layer.weight.detach().abs().max().item() > 1.5:
                nn.init.normal_(self.layer.weight)
                self.drawn += 1
            self.after = nn.Linear(3, 3)

    drawn = set()
    for seed in range(6):
        torch.manual_seed(seed)
        eager = Rejecting()
        model = delayed(Rejecting, seed)
        materialise(model, ["layer", "after"])
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), eager.parameters(), strict=True))
        drawn.add(eager.drawn)
    assert len(drawn) > 1, "no seed here makes it draw again"


def test_off_and_nested() -> None:
    with delay_param_initialization(enabled=False):
        assert not nn.Linear(1, 1).weight.is_meta
    with delay_param_initialization():
        with delay_param_initialization():
            inner = nn.Linear(1, 1)
        outer = nn.Linear(1, 1)
    assert inner.weight.is_meta
    assert outer.weight.is_meta
    assert not nn.Linear(1, 1).weight.is_meta
    materialise(nn.Sequential(inner, outer), ["0", "1"])
    assert not inner.weight.is_meta


def test_an_exception_ends_the_context() -> None:
    with pytest.raises(ZeroDivisionError), delay_param_initialization():
        raise ZeroDivisionError
    assert not nn.Linear(1, 1).weight.is_meta


def test_refusals() -> None:
    """Parameters that nothing recorded, a module that does not exist, tensors that others hold on to."""
    with delay_param_initialization():
        held = nn.Linear(2, 2)
    graph = held.weight**2
    with pytest.raises(SMPUnsupportedError, match="create its module outside"):
        materialise(held, [""])
    assert graph.is_meta
    with torch.device("meta"):
        unknown = nn.Linear(2, 2)
    with pytest.raises(SMPError, match=r"'weight' of the module '' .*nothing recorded"):
        materialise(unknown, [""])
    with pytest.raises(SMPValueError, match="no module 'x'"):
        materialise(unknown, ["x"])


LIMITED = """
import resource, sys, torch, torch._dynamo  # what torch imports late, and one thread's arena, are not counted
from torch import nn
torch.set_num_threads(1)
from smdistributed.modelparallel.torch.partition.delayed_init import delay_param_initialization, materialise
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
make = lambda: nn.Sequential(*(nn.Linear(4096, 2048, bias=False) for _ in range(20)))  # 20 times 32 MiB
if sys.argv[1] == "eager":
    make()
else:
    with delay_param_initialization():
        model = make()
    materialise(model, [str(index) for index in range(14, 18)])
    total = sum(p.untyped_storage().nbytes() for p in model.parameters() if not p.is_meta)
    print(total >> 20)
"""


def test_a_model_larger_than_memory_starts() -> None:
    """640 MiB of parameters with 256 MiB to spend: not eagerly, but the fifth of it that a rank owns."""
    run = [sys.executable, "-c", LIMITED]
    env = clean_environment()
    eager = subprocess.run([*run, "eager"], env=env, capture_output=True, text=True, timeout=120)
    assert eager.returncode != 0
    assert "alloc" in eager.stderr
    late = subprocess.run([*run, "delayed"], env=env, capture_output=True, text=True, timeout=120)
    assert late.stdout.strip() == "128", late.stderr
