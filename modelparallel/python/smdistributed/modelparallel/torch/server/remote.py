"""A call to a module of another rank, seen from the caller: a request that blocks, and its backward.

`nn.Module.__call__` is replaced once; a module that belongs to another rank is called there. Consecutive children of an
`nn.Sequential` that lie elsewhere are sent as one chain: each rank passes its output straight on to the next.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ..exceptions import SMPUnsupportedError
from . import direct
from . import messages as say
from .ambient import capture
from .payload import pack, unpack
from .server import Server
from .serving import backward_label
from .tasks import Label, Phase, Task, current

OWNER = "_smp_owner"
NAME = "_smp_name"

_local_call = nn.Module.__call__
_local_sequential = nn.Sequential.forward


class _Here:
    """The server of this process, and its pp rank; before a model is partitioned over ranks, None and -1."""

    server: Server | None = None
    pp_rank = -1


def install(server: Server) -> None:
    """Let calls of modules that carry another rank's mark go there through `server`."""
    _Here.server, _Here.pp_rank = server, server.settings.pp_rank
    nn.Module.__call__ = _call  # type: ignore[method-assign]
    nn.Sequential.forward = _sequential_forward  # type: ignore[method-assign]


def uninstall() -> None:
    """Let every call be local again."""
    _Here.server, _Here.pp_rank = None, -1
    nn.Module.__call__ = _local_call  # type: ignore[method-assign]
    nn.Sequential.forward = _local_sequential  # type: ignore[method-assign]


def mark(module: nn.Module, owner: dict[str, int]) -> None:
    """Write its name and pp rank on every module of a model."""
    for name, child in module.named_modules():
        child.__dict__[OWNER] = owner[name]
        child.__dict__[NAME] = name


def redirect(module: nn.Module, here: int) -> None:
    """Let what is called as `module.forward(...)` go to other ranks too."""
    for child in module.modules():
        if child.__dict__[OWNER] != here:
            direct.replace(child, _request_one)


def unmark(module: nn.Module) -> None:
    """Make a module a local one again."""
    module.__dict__.pop(OWNER, None)
    direct.restore(module)


def _request_one(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _request(((module.__dict__[OWNER], (module.__dict__[NAME],)),), args, kwargs)


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    owner = self.__dict__.get(OWNER)
    if owner is None or owner == _Here.pp_rank:
        return _local_call(self, *args, **kwargs)
    return _request_one(self, args, kwargs)


def _sequential_forward(self: nn.Sequential, input: Any) -> Any:  # noqa: A002 - torch's name
    children = list(self)
    here = _Here.pp_rank
    owners = [child.__dict__.get(OWNER, here) for child in children]
    start = 0
    while start < len(children):
        if owners[start] == here:
            input = children[start](input)  # noqa: A001
            start += 1
            continue
        chain: list[tuple[int, tuple[str, ...]]] = []
        while start < len(children) and owners[start] != here:
            name = children[start].__dict__[NAME]
            if chain and chain[-1][0] == owners[start]:
                chain[-1] = (owners[start], (*chain[-1][1], name))
            else:
                chain.append((owners[start], (name,)))
            start += 1
        input = _request(tuple(chain), (input,), {})  # noqa: A001
    return input


class _Sent:
    """A forward request on its way: what RemoteCall needs besides tensors, and what it brings back."""

    def __init__(self, server: Server, task: Task, chain: say.Chain, blob: bytes, tensors: list[torch.Tensor]) -> None:
        self.server = server
        self.task = task
        self.chain = chain
        self.blob = blob
        self.tensors = tensors
        self.label = task.next_label()
        self.ambient = capture()

    def ask(self) -> tuple[bytes, tuple[int, ...], list[tuple[torch.Tensor, bool]]]:
        """Send the request and wait: the output without its tensors, which inputs are changed, the tensors of both."""
        server, run = self.server, self.server.running
        here = server.settings.pp_rank
        request = say.Forward(run.number, self.label, here, self.ambient, self.chain, 0, self.blob)
        server.send(self.chain[0][0], request, self.tensors)
        self.tensors = []
        first, last = self.chain[0], self.chain[-1]
        what = f"{first[1][0]!r} on rank {server.ranks[first[0]]}"
        if last != first or len(first[1]) > 1:
            what += f" to {last[1][-1]!r} on rank {server.ranks[last[0]]}"
        answer = run.wait(self.label, self.task, what)
        return answer.message.blob, answer.message.which, answer.tensors


class RemoteCall(torch.autograd.Function):
    """A remote forward as one node of the caller's graph."""

    @staticmethod
    def forward(ctx: Any, sent: _Sent, back: list[Any], _anchor: torch.Tensor, *tensors: torch.Tensor) -> Any:
        """Ask, and return the tensors of the output and the changed inputs."""
        blob, changed, received = sent.ask()
        back += [blob, changed]
        ctx.server, ctx.chain, ctx.label = sent.server, sent.chain, sent.label
        ctx.count = len(tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[tensor for tensor, needs in received if not needs])
        return tuple(tensor for tensor, _ in received)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Ask for the gradients of the tensors sent."""
        which = tuple(i for i, gradient in enumerate(gradients) if gradient is not None)
        found = [gradient for gradient in gradients if gradient is not None]
        result: list[torch.Tensor | None] = [None] * ctx.count
        if which:
            for index, gradient in _ask_backward(ctx.server, ctx.chain, ctx.label, which, found):
                result[index] = gradient
        return (None, None, None, *result)


def _ask_backward(
    server: Server, chain: say.Chain, label: Label, which: tuple[int, ...], gradients: list[torch.Tensor]
) -> list[tuple[int, torch.Tensor]]:
    task = current()
    if task is None:
        raise SMPUnsupportedError(
            "a backward that reaches another rank outside a step: call model.backward inside the step function"
        )
    task.phase = Phase.BACKWARD
    run = server.running
    last = len(chain) - 1
    request = say.Backward(run.number, label, server.settings.pp_rank, last, which)
    server.send(chain[last][0], request, gradients)
    names = chain[last][1]
    answer = run.wait(
        backward_label(label), task, f"the backward of {names[-1]!r} on rank {server.ranks[chain[last][0]]}"
    )
    return [(index, tensor) for index, (tensor, _) in zip(answer.message.which, answer.tensors)]


def _request(chain: say.Chain, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    server, task = _Here.server, current()
    name = chain[0][1][0]
    if server is None or task is None or not task.inside:
        raise SMPUnsupportedError(
            f"module {name!r} lies on pp rank {chain[0][0]}: it can be called only by the model, and the model only "
            "inside a function decorated with smp.step"
        )
    blob, tensors = pack((args, kwargs), server.names, chain[0][0], f"an argument of {name!r}")
    sent = _Sent(server, task, chain, blob, tensors)
    if not sent.ambient.grad:
        blob, changed, received = sent.ask()
        return unpack(blob, _change(tensors, changed, [tensor for tensor, _ in received]), server.names)
    back: list[Any] = []
    # The anchor requires a gradient, so that the call is part of the graph when only parameters over there do.
    outputs = RemoteCall.apply(  # type: ignore[no-untyped-call]
        sent, back, torch.empty(0, requires_grad=True), *tensors
    )
    return unpack(back[0], _change(tensors, back[1], list(outputs)), server.names)


def _change(tensors: list[torch.Tensor], changed: tuple[int, ...], received: list[torch.Tensor]) -> list[torch.Tensor]:
    """Give the inputs that a module changed in place their new values, behind the outputs; return the outputs."""
    outputs = received[: len(received) - len(changed)]
    for index, value in zip(changed, received[len(outputs) :]):
        tensors[index].copy_(value)
    return outputs
