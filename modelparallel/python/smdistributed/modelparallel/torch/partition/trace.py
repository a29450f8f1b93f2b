"""`trace`: run a model's forward pass once, on one process, and record what each of its modules costs."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Iterator

import torch
from torch import nn

from .preserve import preserved
from .records import ModuleRecord, Trace
from .watch import CallWatch, FormWatch, KeptWatch, OperationWatch

logger = logging.getLogger("smdistributed.modelparallel")

_running = False


def is_tracing() -> bool:
    """Whether this process is inside the traced run of the first step."""
    return _running


def trace(
    module: nn.Module,
    run: Callable[[], Any],
    times: bool = False,
    memory: bool = False,
    device: torch.device | str = "cpu",
) -> Trace | None:
    """Records the calls of module and of all modules in it while `run()` performs its forward pass.

    run: must call module with inputs of one micro-batch; it runs once, twice with times (the first run warms up), and
    must not run the backward pass. times: measure own_seconds; else compute is estimated by counting operations.
    memory: measure what autograd keeps; else activations are estimated by outputs. device: where parameters are
    imagined while they are on the meta device (delayed initialisation).

    Random generators and buffers are as before afterwards. Exceptions of run pass through. Returns None for a model
    on the meta device whose forward pass needs values: it has to be placed without a trace.
    """
    if not _on_meta(module):
        return _watched(module, run, times, memory)
    try:
        with _imagined(module, torch.device(device)):
            return _watched(module, run, False, memory)
    # Any exception: forward passes fail on tensors without values in ways that no class has in common.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        logger.warning(
            "the model's parameters have no values yet and its forward pass cannot be traced without (%s): "
            "modules are placed by their parameters, in the order of their declaration",
            reason,
        )
        return None


def empty_trace(module: nn.Module) -> Trace:
    """A Trace of no call: names, classes, and bytes of parameters and buffers only."""
    found = Trace({name: ModuleRecord(type(each).__name__) for name, each in module.named_modules()})
    counted: set[int] = set()
    for name, each in module.named_modules():
        record = found.modules[name]
        record.parameter_bytes = _bytes(each.parameters(recurse=False), counted)
        record.buffer_bytes = _bytes(each.buffers(recurse=False), counted)
    return found


def _watched(module: nn.Module, run: Callable[[], Any], times: bool, memory: bool) -> Trace:
    found = empty_trace(module)
    found.times, found.memory = times, memory
    holders: dict[int, set[str]] = {}
    for name, each in module.named_modules():
        for parameter in each.parameters(recurse=False):
            holders.setdefault(id(parameter), set()).add(name)
    with preserved(module), _flagged(), contextlib.ExitStack() as stack:
        calls = stack.enter_context(CallWatch(module, found))
        if memory:
            stack.enter_context(KeptWatch(calls, module))
        stack.enter_context(OperationWatch(calls, holders))
        stack.enter_context(FormWatch(calls, holders))
        run()
    if times:
        with preserved(module), _flagged(), CallWatch(module, found, timed=True):
            run()
    return found


@contextlib.contextmanager
def _flagged() -> Iterator[None]:
    global _running
    before, _running = _running, True
    try:
        yield
    finally:
        _running = before


def _bytes(tensors: Iterator[torch.Tensor], counted: set[int]) -> int:
    total = 0
    for tensor in tensors:
        if id(tensor) not in counted:
            counted.add(id(tensor))
            total += tensor.numel() * tensor.element_size()
    return total


def _on_meta(module: nn.Module) -> bool:
    held = [*module.parameters(), *module.buffers()]
    return any(tensor.device.type == "meta" for tensor in held)


@contextlib.contextmanager
def _imagined(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Fake tensors of `device` stand in for all tensors on meta, so that the forward pass computes shapes only.

    The mode itself is not entered: operations on real tensors alone stay real, so what a model reads from its inputs
    (padding, lengths) is there to be read.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    stand_ins: dict[int, Any] = {}
    undo: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for each in module.modules():
            for table in (each._parameters, each._buffers):
                for name, tensor in list(table.items()):
                    if tensor is not None and tensor.device.type == "meta":
                        undo.append((table, name, tensor))
                        if id(tensor) not in stand_ins:
                            with mode:
                                stand_ins[id(tensor)] = _stand_in(tensor, device)
                        table[name] = stand_ins[id(tensor)]
        yield
    finally:
        for table, name, tensor in undo:
            table[name] = tensor


def _stand_in(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
