"""Wrong use gets one clear sentence: wrong values for every argument of the API, and right calls at the wrong time."""

from __future__ import annotations

import inspect
import re
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import wrong_values
from smdistributed.modelparallel.torch.config import PARAMETERS, WITHOUT_EFFECT, Config, from_values
from smdistributed.modelparallel.torch.exceptions import SMPConfigError
from smp_jobs import SOURCES, run_ranks
from torch import nn

TWO = '{"partitions": 2, "microbatches": 2, "auto_partition": false, "default_partition": 0}'
# A sentence says what, which value, and behind a colon what is allowed or what to do.
SENTENCE = re.compile(r"[^\n]{8,}: [^\n]{6,}")


def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    """The class and the text of what a call raises; the class of an error of smp is "SMP..."."""
    from smdistributed.modelparallel.torch.exceptions import NotInitializedError, SMPError

    try:
        call()
    except SMPError as error:
        kind = type(error).__name__
        return (kind if isinstance(error, NotInitializedError) or kind.startswith("SMP") else f"SMP{kind}"), str(error)
    except BaseException as error:
        return type(error).__name__, str(error)
    return "accepted", ""


def every_argument(folder: str) -> list[tuple[str, str, str, str]]:
    import smdistributed.modelparallel.torch as smp

    smp.init({"ddp": True})
    plain = nn.Linear(4, 4)
    model = smp.DistributedModel(plain)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(plain.parameters(), lr=0.1))
    calls = wrong_values.calls(smp, Path(folder), model, optimizer)
    return [(name, label, *outcome(call)) for name, label, call in calls]


def test_wrong_values_get_one_sentence(tmp_path: Path) -> None:
    """Each argument of each function, with every value that is not of its kind; nothing is written."""
    found = run_ranks(every_argument, 1, str(tmp_path))[0].report
    assert len(found) > 2500
    wrong = [row for row in found if not row[2].startswith("SMP") or not SENTENCE.fullmatch(row[3])]
    assert not wrong, "\n".join(map(str, wrong))
    assert not list(tmp_path.iterdir())


def named() -> dict[str, Any]:
    import smdistributed.modelparallel.torch as smp

    return {name: getattr(smp, name) for name in smp.__all__}


def test_every_function_that_takes_arguments_is_called_wrongly() -> None:
    import smdistributed.modelparallel.torch as smp

    called = {name.partition("(")[0] for name, *_ in wrong_values.calls(smp, Path(), _Anything(), _Anything())}
    functions = {
        name
        for name, thing in named().items()
        if callable(thing) and not isinstance(thing, type(smp.CommGroup)) and inspect.signature(thing).parameters
    }
    # A decorator of classes, checked by the function that it calls.
    assert {f"smp.{name}" for name in functions} - called == {"smp.tp_register"}


class _Anything:
    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: {}


def before_init() -> dict[str, tuple[str, str]]:
    import smdistributed.modelparallel.torch as smp

    linear = nn.Linear(2, 2)
    calls: dict[str, Callable[[], Any]] = {
        name: thing
        for name, thing in named().items()
        if isinstance(thing, types.FunctionType) and not inspect.signature(thing).parameters
    }
    calls |= {
        "DistributedModel": lambda: smp.DistributedModel(linear),
        "DistributedOptimizer": lambda: smp.DistributedOptimizer(torch.optim.SGD(linear.parameters())),
        "a step": lambda: smp.step(lambda x: x)(torch.ones(2)),
        "clip_grad_norm_": lambda: smp.clip_grad_norm_([], 1.0),
        "partition": lambda: smp.partition(0).__enter__(),
        "set_partition": lambda: smp.set_partition(linear, 0),
        "model_creation": lambda: smp.model_creation().__enter__(),
        "save": lambda: smp.save(1, "/nowhere/file"),
        "load": lambda: smp.load("/nowhere/file"),
        "save_checkpoint": lambda: smp.save_checkpoint("/nowhere", "tag"),
        "resume_from_checkpoint": lambda: smp.resume_from_checkpoint("/nowhere"),
        "send": lambda: smp.send(1, 0),
        "recv_from": lambda: smp.recv_from(0),
        "broadcast": lambda: smp.broadcast(1),
        "allgather": lambda: smp.allgather(1),
        "barrier": lambda: smp.barrier(),
        "DistributedLinear": lambda: smp.nn.DistributedLinear(2, 2),
        "DistributedTransformerLMHead": lambda: smp.nn.DistributedTransformerLMHead(num_layers=1),
    }
    return {name: outcome(call) for name, call in calls.items()}


def test_statement_1_nothing_that_needs_init_works_before_it() -> None:
    found = run_ranks(before_init, 1)[0].report
    assert len(found) > 40
    accepted = {name for name, (kind, _) in found.items() if kind == "accepted"}
    assert accepted == {"is_initialized", "is_tracing", "shutdown"}
    for name, (kind, text) in found.items():
        if name not in accepted:
            assert kind == "NotInitializedError", name
            assert SENTENCE.fullmatch(text), name


def wrong_order(folder: str) -> dict[str, tuple[str, str]]:
    import smdistributed.modelparallel.torch as typed

    smp: Any = typed
    smp.init()
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    said = {"resume before the model": outcome(lambda: smp.resume_from_checkpoint(folder))}
    smp.set_partition(net[2], 1)
    model = smp.DistributedModel(net)
    x = torch.ones(4, 4)
    said |= {
        "init again, otherwise": outcome(lambda: smp.init({"pipeline": "simple"})),
        "init again": outcome(smp.init),
        "a second model": outcome(lambda: smp.DistributedModel(net)),
        "the model outside": outcome(lambda: model(x)),
        "backward outside": outcome(lambda: model.backward(torch.ones(()))),
        "optimizer.step too early": outcome(optimizer.step),
        "optimizer.local_state_dict too early": outcome(optimizer.local_state_dict),
        "local_state_dict too early": outcome(model.local_state_dict),
        "save too early": outcome(lambda: smp.save_checkpoint(folder, "tag", model=model)),
        "join without ddp": outcome(model.join),
        "a hook without ddp": outcome(lambda: model.register_comm_hook(None, print)),
    }

    @smp.step
    def other(_x: torch.Tensor) -> None: ...

    @smp.step
    def train(model: Any, x: torch.Tensor, inside: Callable[[], Any] | None = None) -> Any:
        if inside is not None:
            return outcome(inside)
        loss = model(x).square().mean()
        model.backward(loss)
        return loss

    train(model, x)

    def in_a_thread(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            found: list[BaseException] = []

            def body() -> None:
                try:
                    call()
                except BaseException as error:
                    found.append(error)

            thread = threading.Thread(target=body)
            thread.start()
            thread.join()
            if found:
                raise found[0]

        return run

    for name, call in {
        "a step in a step": lambda: other(x),
        "a step in a thread of a step": in_a_thread(lambda: other(x)),
        "the model in a thread of a step": in_a_thread(lambda: model(x)),
        "backward in a thread of a step": in_a_thread(lambda: model.backward(torch.ones(()))),
        "tensor.backward": lambda: torch.ones((), requires_grad=True).backward(),
        "optimizer.step in a step": optimizer.step,
        "zero_grad in a step": optimizer.zero_grad,
        "clip in a step": lambda: smp.clip_grad_norm_(model.parameters(), 1.0),
        "no tensor": lambda: model.backward(3),
        "a second model in a step": lambda: smp.DistributedModel(net),
    }.items():
        kinds, texts = train(model, x, call)  # a list by micro-batch of each
        said[name] = kinds[0], texts[0]
    said["set_partition too late"] = outcome(lambda: smp.set_partition(net[0], 1))
    said["tensor parallelism too late"] = outcome(lambda: smp.set_tensor_parallelism(net[0]))
    said["an unknown module"] = outcome(lambda: model.owner_of("0.weight"))
    # After all that a step works as before.
    said["a step"] = outcome(lambda: train(model, x))
    return said


ORDER = {
    "resume before the model": "smp.resume_from_checkpoint: there is no model yet: call smp.DistributedModel",
    "init again, otherwise": "smp.init was called before with another configuration: call it once",
    "a second model": "smp.DistributedModel was called before: a script has one distributed model",
    "the model outside": "the model is called outside a step: call it inside a function decorated with smp.step",
    "backward outside": "model.backward is called outside a step: call it inside",
    "optimizer.step too early": "the optimizer is used before the model is partitioned: call the smp.step function",
    "optimizer.local_state_dict too early": "the optimizer is used before the model is partitioned: call",
    "local_state_dict too early": "model.owner_of before the model is partitioned: call it after the first step",
    "save too early": "before the model is partitioned: call it after the first step",
    "join without ddp": "model.join needs ddp: true: there are no replicas to wait for",
    "a hook without ddp": "register_comm_hook needs ddp: true",
    "a step in a step": "step function 'other' is called inside a step: call it outside",
    "a step in a thread of a step": "step function 'other' is called while another thread runs a step: call",
    "the model in a thread of a step": "the model is called outside a step: call it inside",
    "backward in a thread of a step": "model.backward is called outside a step: call it inside",
    "tensor.backward": "tensor.backward() inside a step: use model.backward(tensor)",
    "optimizer.step in a step": "optimizer.step is called inside a step: gradients are complete when",
    "zero_grad in a step": "optimizer.zero_grad is called inside a step: it would clear what other micro-batches",
    "clip in a step": "smp.clip_grad_norm_ is called inside a step: gradients are complete when",
    "no tensor": "model.backward: one of tensors is 3: it must be a tensor",
    "a second model in a step": "smp.DistributedModel was called before: a script has one distributed model",
    "set_partition too late": "smp.set_partition was called after the first step, when modules are on their ranks",
    "tensor parallelism too late": "smp.set_tensor_parallelism was called after smp.DistributedModel(), which",
    "an unknown module": "model.owner_of: name is '0.weight': it must be that of a module",
}


def test_calls_at_a_wrong_time_get_one_sentence(tmp_path: Path) -> None:
    """On both ranks, and none of them spoils what comes after."""
    for one in run_ranks(wrong_order, 2, str(tmp_path), config=TWO):
        for name, (kind, text) in one.report.items():
            if name in ("init again", "a step"):
                assert (kind, text) == ("accepted", ""), name
            else:
                assert kind.startswith("SMP"), (name, kind, text)
                assert ORDER[name] in text, name
                assert SENTENCE.fullmatch(text), name
    assert not list(tmp_path.iterdir())


def stale() -> list[tuple[str, str]]:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    with smp.tensor_parallelism():
        plain = nn.Linear(4, 4)
    before, early = (torch.optim.SGD(plain.parameters(), lr=0.1) for _ in range(2))
    early = smp.DistributedOptimizer(early)
    smp.DistributedModel(plain)
    return [outcome(lambda: smp.DistributedOptimizer(before)), outcome(early.step)]


def test_statement_4_an_optimizer_of_replaced_parameters_is_refused() -> None:
    for one in run_ranks(stale, 2, config='{"tensor_parallel_degree": 2, "ddp": true}'):
        for kind, text in one.report:
            assert kind == "SMPValueError"
            assert text.startswith(
                "smp.DistributedOptimizer: 2 parameter(s) of the optimizer, the first of shape [4, 4]"
            )
            assert SENTENCE.fullmatch(text)


# -- the configuration

FIELDS = {name: field.metadata for name, field in Config.__dataclass_fields__.items() if name != "given"}
CONFIG_KINDS = {"flag": "flag", "whole": "count", "choice": "word", "text": "name", "number": "rate"}


@pytest.mark.parametrize("name", PARAMETERS)
def test_wrong_values_of_parameters_get_one_sentence(name: str) -> None:
    rule = FIELDS[name]
    optional = getattr(Config(), name) is None
    for label, value in wrong_values.wrong(CONFIG_KINDS[rule["kind"]] + "?" * optional):
        if (label == "0" and rule.get("least") == 0) or (rule["kind"] == "text" and isinstance(value, str)):
            continue
        with pytest.raises(SMPConfigError) as caught:
            from_values({"ddp": True, "partition_file": "file", name: value})
        text = str(caught.value)
        assert SENTENCE.fullmatch(text)
        assert text.startswith(f"{name} is "), text
        assert ": it must be " in text


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "horovod"])
def test_a_misspelt_parameter_is_recognized(name: str) -> None:
    """A letter too few, one too many, two exchanged, and another case."""
    middle = len(name) // 2
    for typo in (
        name[:middle] + name[middle + 1 :],
        name[:middle] + name[middle] + name[middle:],
        name.upper(),
        name.replace("_", "-"),
    ):
        if typo != name:
            with pytest.raises(SMPConfigError, match=f"there is no parameter '{typo}': did you mean '"):
                from_values({typo: getattr(Config(), name)})


def test_a_parameter_is_read_or_said_to_have_no_effect() -> None:
    package = SOURCES / "smdistributed" / "modelparallel" / "torch"
    code = "\n".join(path.read_text() for path in package.rglob("*.py") if path.name != "config.py")
    read = {name for name in PARAMETERS if re.search(rf"\bcfg\.{name}\b", code)}
    assert set(PARAMETERS) - read == set(WITHOUT_EFFECT)
