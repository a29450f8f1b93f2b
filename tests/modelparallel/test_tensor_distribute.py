"""Which modules smp distributes: contexts, later wishes, registered classes, and what stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from tensor_oracle import start
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(size, size)
        self.second = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Tied(nn.Module):
    """Two linear maps that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x))


class Squeezed(nn.Module):
    """Not a linear map by name, nor by arguments."""

    def __init__(self, sizes: tuple[int, int], scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.inner = nn.Linear(*sizes)

    def forward(self, values: dict[str, Tensor], key: str = "x") -> tuple[Tensor, str]:
        return self.inner(values[key]) * self.scale, key


def classes(module: nn.Module) -> dict[str, str]:
    return {name: type(each).__name__ for name, each in module.named_modules()}


def wishes() -> dict[str, Any]:
    smp = start(2)
    found: dict[str, Any] = {}

    @smp.tensor_parallelism()
    def decorated() -> nn.Module:
        return nn.Linear(4, 4)

    with smp.tensor_parallelism():
        inside = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(3, 4), nn.Embedding(5, 4), nn.ReLU())
        with smp.tensor_parallelism(enabled=False):
            not_this = nn.Linear(4, 4)
        tied = Tied()
        reused = nn.Sequential(*[nn.Linear(4, 4)] * 2)
        copied = nn.TransformerEncoderLayer(4, 2, 8)
    outside = nn.Linear(4, 4)
    model = nn.ModuleList([inside, not_this, tied, reused, outside, decorated(), copied])
    model = smp.tp.distribute(model)
    found["context"] = classes(model)
    found["reused"] = model[3][0] is model[3][1]

    later = Block(4)
    smp.set_tensor_parallelism(later, True)
    smp.set_tensor_parallelism(later.first, False)
    frozen = Block(4).requires_grad_(False).eval().double()
    smp.set_tensor_parallelism(frozen)
    both = smp.tp.distribute(nn.ModuleList([later, frozen]))
    found["later"] = classes(both)
    new = both[1].first
    found["taken over"] = (new.training, new.weight.requires_grad, new.weight.dtype)
    return found


def test_contexts_and_later_wishes_choose_what_is_distributed() -> None:
    """Statement 36: innermost context, sizes that do not divide, weights that are shared, modules that are used
    twice."""
    for rank in run_ranks(wishes, 2):
        context = rank.report["context"]
        assert {name: context[name] for name in ("0.0", "0.1", "0.2", "0.3", "0.4")} == {
            "0.0": "DistributedLinear",
            "0.1": "DistributedLinear",
            "0.2": "Linear",
            "0.3": "DistributedEmbedding",
            "0.4": "ReLU",
        }
        assert (context["1"], context["4"], context["5"]) == ("Linear", "Linear", "DistributedLinear")
        assert (context["2.one"], context["2.other"]) == ("Linear", "Linear")
        assert context["3.0"] == "DistributedLinear"
        assert rank.report["reused"]
        assert context["6.linear1"] == "DistributedLinear"
        # A subclass of nn.Linear, whose weight nn.MultiheadAttention reads itself.
        assert context["6.self_attn.out_proj"] == "NonDynamicallyQuantizableLinear"
        later = rank.report["later"]
        kind = "DistributedLinear"
        assert (later["0.first"], later["0.second"], later["1.first"]) == ("Linear", kind, kind)
        assert rank.report["taken over"] == (False, False, torch.float64)


def registered() -> dict[str, Any]:
    smp = start(2)
    from smdistributed.modelparallel.torch.exceptions import SMPValueError

    found: dict[str, Any] = {}
    model = nn.ModuleList([Squeezed((4, 2), scale=2.0), Block(4), Block(6)])
    # As clients do: after the model was created.
    smp.set_tensor_parallelism(model, bias=False)
    smp.tp_register_with_module(
        Squeezed,
        smp.nn.DistributedLinear,
        init_hook=lambda sizes, scale=1.0: (sizes, {}),
        forward_hook=lambda values, key="x": ((values[key],), {}),
        return_hook=lambda output: (output, "x"),
    )
    smp.tp_register(smp.nn.DistributedLinear, init_hook=lambda size: ((size, size), {}))(Block)
    model = smp.tp.distribute(model)
    found["classes"] = classes(model)
    found["bias"] = model[0].bias is None
    output, key = model[0]({"x": torch.ones(2, 4)})
    found["called"] = (tuple(output.shape), key, torch.allclose(output, model[0](values={"x": torch.ones(2, 4)})[0]))
    wrong = {
        "init": lambda: smp.tp_register(smp.nn.DistributedLinear, init_hook=lambda sizes, scale=2.0: ((), {}))(
            Squeezed
        ),
        "forward": lambda: smp.tp_register(smp.nn.DistributedLinear, forward_hook=lambda x: ((), {}))(Squeezed),
        "plain": lambda: smp.tp_register_with_module(Squeezed, nn.Linear),
        "function": lambda: smp.tp_register_with_module(print, smp.nn.DistributedLinear),
        "no module": lambda: smp.set_tensor_parallelism("encoder"),
        "enabled": lambda: smp.tensor_parallelism(2),
    }
    for name, attempt in wrong.items():
        try:
            attempt()
        except SMPValueError as error:
            found[name] = str(error)
    return found


def test_registered_classes_are_replaced_and_their_calls_translated() -> None:
    """Statement 36: tp_register, tp_register_with_module and their hooks; wrong ones are refused with one sentence."""
    for rank in run_ranks(registered, 2):
        report = rank.report
        kind = "DistributedLinear"
        assert report["classes"] == {"": "ModuleList", "0": kind, "1": kind, "2": kind}
        assert report["bias"]
        assert report["called"] == ((2, 2), "x", True)
        assert "init_hook takes (sizes, scale=2.0)" in report["init"]
        assert "what Squeezed.__init__ takes, (sizes, scale=1.0)" in report["init"]
        assert "what Squeezed.forward takes, (values, key='x')" in report["forward"]
        assert "Linear is no subclass of smp.nn.DistributedModule" in report["plain"]
        assert "no subclass of torch.nn.Module" in report["function"]
        assert "module is 'encoder': it must be an nn.Module" in report["no module"]
        assert "enabled is 2" in report["enabled"]


def trained(prescaled: bool) -> dict[str, Any]:
    """TP x DP through smp: two steps of SGD against one process that sees all samples."""
    smp = start(2, prescaled_batch=prescaled)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    with smp.tensor_parallelism():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Block(8))
    with smp.tensor_parallelism(enabled=False):
        model.append(nn.Linear(8, 2))
    torch.manual_seed(11)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Block(8), nn.Linear(8, 2))
    before = model[0].weight
    torch.manual_seed(50 + smp.tp_rank())
    model = smp.DistributedModel(model)
    weight = model.module[0].weight
    found = {"shape": tuple(weight.shape), "inherited": weight is before}
    found["keys"] = set(model.state_dict()) == set(plain.state_dict())
    asked = smp.tp.TensorParallelQueries()
    asked.module = model.module
    found["modules"] = [type(one).__name__ for one in asked.distributed_modules()]
    found["over dp"] = [name for name, _ in asked.default_reducer_named_parameters()]
    found["over rdp"] = [name for name, p in asked.scaled_batch_reducer_named_parameters()]
    found["scaled"] = [name for name, p in model.module.named_parameters() if asked.is_scaled_batch_parameter(p)]
    # A checkpoint of the plain model is loaded: from here both compute the same.
    model.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)

    @smp.step
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = (model(x) - y).pow(2).mean()
        model.backward(loss)
        return loss

    shards = smp.rdp_size() if prescaled else smp.dp_size()
    mine = smp.rdp_rank() if prescaled else smp.dp_rank()
    g = torch.Generator().manual_seed(1)
    for _ in range(2):
        x, y = torch.randn(4 * shards, 6, generator=g), torch.randn(4 * shards, 2, generator=g)
        optimizer.zero_grad()
        step(x[4 * mine : 4 * mine + 4], y[4 * mine : 4 * mine + 4])
        optimizer.step()
        reference.zero_grad()
        (plain(x) - y).pow(2).mean().backward()
        reference.step()
    full = model.state_dict()
    found["error"] = max(float((full[key] - value).abs().max()) for key, value in plain.state_dict().items())
    return found


@pytest.mark.parametrize("prescaled", [False, True])
def test_training_with_tensor_and_data_parallelism_equals_one_process(prescaled: bool) -> None:
    """Statements 4 (optimizer after wrapping), 36 (drawn anew, local shape), 37 and 38 (whose gradients are
    averaged)."""
    for rank in run_ranks(trained, 4, prescaled):
        assert rank.report["shape"] == (8, 3)
        assert not rank.report["inherited"]
        assert rank.report["keys"]
        assert rank.report["error"] < 1e-12
        assert rank.report["modules"] == ["DistributedLinear"] * 3
        assert rank.report["over rdp"] == rank.report["scaled"] == ["0.weight", "2.first.weight", "2.second.weight"]
        assert rank.report["over dp"] == ["0.bias", "2.first.bias", "2.second.bias", "3.weight", "3.bias"]
