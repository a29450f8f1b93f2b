"""What a rank does for others: run modules forward, and the backward of what it ran."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Iterator

import torch

from . import messages as say
from .ambient import applied
from .failures import failure_of
from .payload import pack, unpack
from .step_run import Saved, StepRun
from .tasks import Label, current

if TYPE_CHECKING:
    from .server import Server

Tensors = "list[tuple[torch.Tensor, bool]]"


# In a task's label, after the label of the call it serves; calls are numbered from 1.
BACKWARD_MARK, FORWARD_MARK = -1, -2


class _Private(torch.autograd.Function):
    """Received tensors as a module gets them in one process: results, and no leaves, so it may change them in place."""

    @staticmethod
    def forward(ctx: Any, *leaves: torch.Tensor) -> Any:
        """Return tensors of the same memory that are no views of the leaves."""
        ctx.set_materialize_grads(False)
        return tuple(leaf.new_empty(0).set_(leaf) for leaf in leaves)  # type: ignore[call-overload]

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Hand the gradients on."""
        return gradients


def _private(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    if not trained:
        return leaves
    found = iter(_Private.apply(*trained))  # type: ignore[no-untyped-call]
    return [next(found) if leaf.requires_grad else leaf for leaf in leaves]


@contextlib.contextmanager
def _failing_goes_to(server: Server, run: StepRun, origin: int, label: Label) -> Iterator[None]:
    """Answer the request with the exception that the block raises: the caller may handle it as if it were local."""
    task = current()
    assert task is not None
    task.inside = True
    try:
        yield
    except Exception as error:
        if run.failure is not None:  # the step ends anyway, and nobody waits for an answer
            return
        server.send(origin, say.Failed(run.number, label, failure_of(error, server.settings.rank, task)))


def serve_forward(
    server: Server, run: StepRun, request: say.Forward, received: list[tuple[torch.Tensor, bool]]
) -> None:
    """Run the modules of one segment of a chain and send their output to the next segment, or to who asked."""
    with _failing_goes_to(server, run, request.origin, request.label):
        names = request.chain[request.segment][1]
        grad = request.ambient.grad
        leaves = [tensor.requires_grad_(needs and grad) for tensor, needs in received]
        received.clear()
        with applied(request.ambient):
            given = _private(leaves)
            versions = [tensor._version for tensor in given]
            args, kwargs = unpack(request.blob, given, server.names)
            output = server.names.module(names[0])(*args, **kwargs)
            for name in names[1:]:
                output = server.names.module(name)(output)
        last = request.segment + 1 == len(request.chain)
        receiver = request.origin if last else request.chain[request.segment + 1][0]
        what = f"the output of {names[-1]!r}"
        # What a module changed in place must change for its caller as well.
        changed = [index for index, tensor in enumerate(given) if tensor._version != versions[index]]
        blob, outputs = pack(output if last else ((output,), {}), server.names, receiver, what)
        if request.segment or not last:
            changed = []  # a tensor that a Sequential hands on has no other use
        outputs += [given[index] for index in changed]
        if grad and any(tensor.requires_grad for tensor in outputs):
            previous = request.chain[request.segment - 1][0] if request.segment else None
            run.saved[request.label, request.segment] = Saved(leaves, outputs, previous)
        if last:
            server.send(receiver, say.Reply(run.number, request.label, blob, tuple(changed)), outputs)
        else:
            server.send(receiver, request._replace(segment=request.segment + 1, blob=blob), outputs)


def serve_backward(
    server: Server, run: StepRun, request: say.Backward, received: list[tuple[torch.Tensor, bool]]
) -> None:
    """Run the backward of a served forward; send the inputs' gradients to the segment before, or to who asked."""
    label = backward_label(request.label)
    with _failing_goes_to(server, run, request.origin, label):
        saved = run.saved.pop((request.label, request.segment))
        gradients = [tensor for tensor, _ in received]
        received.clear()
        torch.autograd.backward([saved.outputs[i] for i in request.which], gradients)
        del gradients
        which = tuple(i for i, leaf in enumerate(saved.leaves) if leaf.grad is not None)
        found = [leaf.grad for leaf in saved.leaves if leaf.grad is not None]
        if saved.previous is not None and which:
            server.send(saved.previous, request._replace(segment=request.segment - 1, which=which), found)
        else:
            server.send(request.origin, say.Reply(run.number, label, b"", which), found)


def backward_label(label: Label) -> Label:
    """Return the label of the backward of the call `label`."""
    return (*label, BACKWARD_MARK)
