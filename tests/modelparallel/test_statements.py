"""The documented rules of scripts, observed in one pipeline of two ranks (statements 1-30 of the facts, C1-C6).

One job makes all observations, each under a name; a test reads those of its statement on both ranks.
"""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {"partitions": 2, "microbatches": 4, "auto_partition": False, "default_partition": 0, "active_microbatches": 2}


class Tagged(collections.OrderedDict):  # type: ignore[type-arg]
    """A subclass of a container, as model outputs often are."""


class Message:
    """An arbitrary object with a tensor in it."""

    def __init__(self, tensor: torch.Tensor, text: str) -> None:
        self.tensor = tensor
        self.text = text


class Remote(nn.Module):
    """Lies on rank 1: takes and returns whatever Python has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.seen: torch.Tensor

    def forward(self, message: Message, unused: torch.Tensor, weight: nn.Parameter, flag: bool = False) -> Tagged:
        self.seen += 1
        y = functional.linear(self.linear(message.tensor), weight)
        other = y.detach() * 2 if flag else y * 2
        return Tagged(y=y, pair=(other, "text " + message.text), count=3, rank=torch.distributed.get_rank())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.remote = Remote()
        self.shared = nn.Linear(4, 4)
        self.again = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.weight = nn.Parameter(torch.eye(4))
        self.no_parameters = nn.Tanh()

    def forward(self, x: torch.Tensor, twice: bool = True) -> dict[str, Any]:
        h = self.no_parameters(self.first(x))
        out = self.remote(Message(h, "there"), torch.ones(2, requires_grad=True), self.weight, flag=True)
        h = self.again(out["y"])
        if int(x.sum() > 0) or twice:  # data decides how often a module of the other rank runs
            h = self.shared(h)
        h = self.shared(h)
        return {"h": h, "out": out, "unfinished": self.again(h)}


def _error(function: Any) -> tuple[str, str]:
    try:
        function()
    except BaseException as error:
        return type(error).__name__, str(error).splitlines()[0]
    return "nothing", ""


def observe() -> dict[str, Any]:
    import smdistributed.modelparallel.torch as smp

    seen: dict[str, Any] = {"before init": _error(lambda: smp.DistributedModel(nn.Linear(2, 2)))}
    smp.init(CONFIG)
    torch.manual_seed(1)
    net = Net()
    reference = Net()
    reference.load_state_dict(net.state_dict())
    for module in (net.remote, net.shared, net.again[0], net.again[2]):
        smp.set_partition(module, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen["bad wraps"] = [
        _error(lambda: smp.DistributedModel(nn.Linear)),  # type: ignore[arg-type]
        _error(lambda: smp.DistributedModel(nn.DataParallel(nn.Linear(2, 2)))),
        _error(lambda: smp.DistributedModel(torch.jit.script(nn.Linear(2, 2)))),
        _error(lambda: smp.DistributedModel(nn.Linear(2, 2), backward_passes_per_step=0)),
    ]
    model = smp.DistributedModel(net)
    seen["second"] = _error(lambda: smp.DistributedModel(nn.Linear(2, 2)))
    seen["outside"] = [_error(lambda: model(torch.ones(2, 4))), _error(lambda: model.backward(torch.ones(())))]
    seen["early"] = [model.partitioned, _error(lambda: list(model.local_parameters()))]
    hooks: list[Any] = []
    model.register_post_partition_hook(lambda m, o: hooks.append(("partition", m is model, m.partitioned)))
    removed = model.register_post_partition_hook(lambda m, o: hooks.append("removed"))
    removed.remove()
    model.register_post_step_hook(lambda m, o: hooks.append("step"))
    before = net.first.weight.data_ptr()
    model.to("cpu")
    seen["to"] = net.first.weight.data_ptr() == before

    @smp.step
    def train(model: Any, x: torch.Tensor, note: str) -> Any:
        found = model(x)
        loss = found["h"].square().mean()
        model.backward(loss)
        return loss, {"h": found["h"], "rank": found["out"]["rank"]}, note, found["out"]["pair"]

    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(3))
    optimizer.zero_grad()
    loss, dictionary, note, pair = train(model, x, "a note")
    seen["types"] = [type(v).__name__ for v in (loss, dictionary, dictionary["h"], dictionary["rank"], note, pair)]
    seen["values"] = [note, dictionary["rank"], pair[1]]
    seen["losses"] = [o.tolist() for o in loss.outputs]
    seen["h"] = dictionary["h"].concat().tolist()
    seen["graph"] = [o.requires_grad for o in (*loss.outputs, dictionary["h"].concat(), loss.reduce_mean())]
    seen["hooks"] = list(hooks)
    seen["owners"] = {name: model.owner_of(name) for name in ("", "first", "remote", "remote.linear", "no_parameters")}
    seen["local"] = sorted(name for name, _ in model.local_named_parameters())
    seen["sizes"] = {name: p.numel() for name, p in net.named_parameters()}
    seen["gradients"] = {n: p.grad.tolist() for n, p in model.local_named_parameters() if p.grad is not None}
    seen["buffer"] = {n: b.item() for n, b in model.local_named_buffers()}
    expected = [reference(part) for part in x.chunk(4)]
    for found in expected:
        (found["h"].square().mean() / 4).backward()
    seen["expected losses"] = [found["h"].square().mean().tolist() for found in expected]
    seen["expected gradients"] = {n: p.grad.tolist() for n, p in reference.named_parameters() if p.grad is not None}
    _wrong_steps(smp, model, x, seen)
    _evaluation(smp, model, x, seen)
    _splitting(smp, model, seen)
    full = model.state_dict()
    seen["state"] = {
        "keys": list(full) == list(reference.state_dict()),
        "partial": model.local_state_dict()["_smp_is_partial"],
    }
    seen["state"]["empty"] = [n for n, t in full.items() if t.numel() == 0]
    return seen


def _wrong_steps(smp: Any, model: Any, x: torch.Tensor, seen: dict[str, Any]) -> None:
    @smp.step
    def plain_backward(model: Any, x: torch.Tensor) -> None:
        model(x)["h"].square().mean().backward()

    @smp.step
    def not_scalar(model: Any, x: torch.Tensor) -> None:
        model.backward(model(x)["h"])

    @smp.step
    def submodule(model: Any, x: torch.Tensor) -> None:
        model.module.shared(x)

    @smp.step
    def nested(model: Any, x: torch.Tensor) -> None:
        not_scalar(model, x)

    @smp.step
    def one(model: Any, x: Any) -> Any:
        return model(x)["h"]

    loader = DataLoader(TensorDataset(torch.zeros(8, 4)), batch_size=4)
    seen["wrong"] = {
        "plain_backward": _error(lambda: plain_backward(model, x)),
        "not_scalar": _error(lambda: not_scalar(model, x)),
        "submodule": _error(lambda: submodule(model, x)),
        "nested": _error(lambda: nested(model, x)),
        "indivisible": _error(lambda: one(model, x[:6])),
        "loader": _error(lambda: one(model, loader)),
        "unknown name": _error(lambda: smp.step(non_split_inputs=["y"])(lambda x: x)),
        "no function": _error(lambda: smp.step(3)),
    }


def _evaluation(smp: Any, model: Any, x: torch.Tensor, seen: dict[str, Any]) -> None:
    @smp.step
    def evaluate(model: Any, x: torch.Tensor) -> Any:
        return model(x)["h"], torch.is_grad_enabled()

    model.eval()
    with torch.no_grad():
        out, enabled = evaluate(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        half, _ = evaluate(model, x)
    model.train()
    seen["evaluation"] = {"enabled": enabled, "dtype": str(half.concat().dtype), "shape": list(out.concat().shape)}


def _splitting(smp: Any, model: Any, seen: dict[str, Any]) -> None:
    class Sliced:
        def smp_slice(self, num_mb: int, mb: int, axis: int) -> tuple[int, int, int]:
            return num_mb, mb, axis

    @smp.step(non_split_inputs=["table"], input_split_axes={"columns": 1})
    def shapes(table: torch.Tensor, columns: torch.Tensor, nested: Any, sliced: Any, *, last: torch.Tensor) -> Any:
        tensors = (table, columns, nested["a"][0], last)
        return f"{[list(tensor.shape) for tensor in tensors]} {sliced} {nested['s']}"

    nested = {"a": [torch.zeros(8, 2)], "s": "text"}
    arguments = (torch.zeros(3), torch.zeros(2, 8), nested, Sliced())
    seen["split"] = shapes(*arguments, last=torch.zeros(8))

    @smp.step(detach_outputs=False)
    def attached(model: Any, x: torch.Tensor) -> Any:
        return model(x)["h"]

    seen["attached"] = attached(model, torch.ones(4, 4)).outputs[0].requires_grad


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    return [rank.report for rank in run_ranks(observe, 2)]


def refused(found: tuple[str, str], kind: str, text: str) -> None:
    """Both ranks do the wrong thing: this one raises that, or the news that the other did, whichever comes first."""
    assert found[0] == kind or (found[0] == "StepError" and f"{kind}: " in found[1])
    assert text in found[1]


def test_statement_1_init_comes_first_and_one_model_a_script(seen: list[dict[str, Any]]) -> None:
    for ranks in seen:
        assert ranks["before init"][0] == "NotInitializedError"
        assert ranks["second"] == (
            "SMPUnsupportedError",
            "smp.DistributedModel was called before: a script has one distributed model",
        )


def test_statement_2_outputs_are_on_every_rank(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["h"] == seen[1]["h"]
    assert seen[0]["losses"] == seen[1]["losses"] == pytest.approx(seen[0]["expected losses"])


def test_statement_3_the_model_runs_only_inside_a_step(seen: list[dict[str, Any]]) -> None:
    for ranks in seen:
        for kind, text in ranks["outside"]:
            assert kind == "SMPUnsupportedError"
            assert "call it inside a function decorated with smp.step" in text
    refused(seen[0]["wrong"]["plain_backward"], "SMPUnsupportedError", "use model.backward(tensor)")


def test_statements_5_and_20_gradients_are_complete_and_the_mean_over_micro_batches(seen: list[dict[str, Any]]) -> None:
    found = {**seen[0]["gradients"], **seen[1]["gradients"]}
    assert found.keys() == seen[0]["expected gradients"].keys()
    for name, value in seen[0]["expected gradients"].items():
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(value), rtol=1e-5, atol=1e-7, msg=name)


def test_statement_6_evaluation_under_no_grad_and_autocast(seen: list[dict[str, Any]]) -> None:
    for ranks in seen:
        assert ranks["evaluation"] == {"enabled": [False] * 4, "dtype": "torch.bfloat16", "shape": [8, 4]}


def test_statement_7_a_batch_that_does_not_divide(seen: list[dict[str, Any]]) -> None:
    kind, text = seen[0]["wrong"]["indivisible"]
    assert kind == "SMPValueError"
    assert text.startswith(
        "argument 'x' of step function 'one' has the shape [6, 4]: 6 along axis 0 does not divide into 4"
    )
    assert "drop_last=True" in text


def test_statement_8_a_loader_is_no_batch(seen: list[dict[str, Any]]) -> None:
    kind, text = seen[1]["wrong"]["loader"]
    assert kind == "SMPUnsupportedError"
    assert "is a DataLoader: iterate over it outside" in text


def test_statement_9_a_device_is_ignored(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["to"]


def test_statements_10_and_25_modules_are_where_they_were_put(seen: list[dict[str, Any]]) -> None:
    for ranks in seen:
        assert ranks["owners"] == {"": 0, "first": 0, "remote": 1, "remote.linear": 1, "no_parameters": 0}
    assert seen[0]["local"] == ["first.bias", "first.weight", "weight"]
    assert "remote.linear.weight" in seen[1]["local"]
    assert seen[0]["sizes"]["remote.linear.weight"] == 0
    assert seen[1]["sizes"]["first.weight"] == 0


def test_statements_11_and_12_unused_tensors_and_outputs_do_no_harm(seen: list[dict[str, Any]]) -> None:
    assert set(seen[0]["gradients"]) == {"first.weight", "first.bias", "weight"}


def test_statement_17_wrappers_of_other_libraries_are_refused(seen: list[dict[str, Any]]) -> None:
    kinds = [kind for kind, _ in seen[0]["bad wraps"]]
    assert kinds == ["SMPValueError", "SMPUnsupportedError", "SMPUnsupportedError", "SMPValueError"]
    assert "unwrap it (.module)" in seen[0]["bad wraps"][1][1]
    assert "torch.compile" in seen[0]["bad wraps"][2][1]


def test_statement_19_arguments_that_are_not_split_or_split_elsewhere(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["split"] == [f"[[3], [2, 2], [2, 2], [2]] (4, {index}, 0) text" for index in range(4)]


def test_statement_22_outputs_are_detached_unless_asked(seen: list[dict[str, Any]]) -> None:
    for ranks in seen:
        assert not any(ranks["graph"])
    assert seen[0]["attached"]


def test_statement_24_arbitrary_objects_and_parameters_as_arguments(seen: list[dict[str, Any]]) -> None:
    for ranks in seen:
        assert ranks["types"] == ["StepOutput", "dict", "StepOutput", "list", "list", "tuple"]
        assert ranks["values"] == [["a note"] * 4, [1] * 4, ["text there"] * 4]
    assert seen[1]["buffer"] == {"remote.seen": 4.0}


def test_statement_29_hooks_run_once_partitioned_before_the_first_forward(seen: list[dict[str, Any]]) -> None:
    for ranks in seen:
        assert ranks["hooks"] == [("partition", True, True), "step"]
        assert ranks["early"][0] is False
        assert ranks["early"][1][0] == "SMPUnsupportedError"


def test_statement_31_state_has_the_keys_of_the_plain_module(seen: list[dict[str, Any]]) -> None:
    for ranks in seen:
        assert ranks["state"] == {"keys": True, "partial": True, "empty": []}


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        ("not_scalar", "SMPValueError", "needs its gradient"),
        ("submodule", "SMPUnsupportedError", "it can be called only by the model"),
        ("nested", "SMPUnsupportedError", "is called inside a step"),
        ("unknown name", "SMPValueError", "has no argument 'y'"),
        ("no function", "SMPValueError", "decorates a function, not 3"),
    ],
)
def test_wrong_use_gets_one_sentence(seen: list[dict[str, Any]], case: str, kind: str, text: str) -> None:
    refused(seen[0]["wrong"][case], kind, text)
