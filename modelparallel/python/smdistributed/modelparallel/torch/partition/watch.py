"""Hooks and dispatch modes that fill a Trace while a forward pass runs. One Watch serves one run."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from typing import Any, Iterator, Mapping

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .pytree import leaves
from .records import Trace

STEP = "<step>"


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors inside value, as deep as containers, mappings and dataclasses go."""
    if isinstance(value, torch.Tensor):
        yield value
    # Arguments that contain themselves exist (caches that point to their model): a bound instead of a set of ids.
    elif depth < 8:
        if isinstance(value, Mapping):
            inner: Any = value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            inner = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        else:
            return
        for item in inner:
            yield from tensors_in(item, depth + 1)


def size_of(value: Any) -> int:
    """Bytes of the tensors inside value, a tensor that occurs twice counted once."""
    unique = {id(tensor): tensor for tensor in tensors_in(value)}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())


@dataclasses.dataclass
class _Frame:
    """A call that is running."""

    name: str
    started: float = 0.0
    in_children: float = 0.0
    called_others: bool = False
    last_child: str = ""
    last_outputs: frozenset[int] = frozenset()
    # Keeps the last outputs alive, so that their ids are not given to other tensors.
    held: list[torch.Tensor] = dataclasses.field(default_factory=list)


class CallWatch:
    """Forward hooks on every module: order, callers, bytes in and out, and (timed) time."""

    def __init__(self, module: nn.Module, trace: Trace, timed: bool = False) -> None:
        self.trace = trace
        self.timed = timed
        self.names = {id(each): name for name, each in module.named_modules()}
        self.stack: list[_Frame] = [_Frame(STEP)]
        self._module = module
        self._handles: list[Any] = []

    def __enter__(self) -> CallWatch:
        for each in self._module.modules():
            self._handles.append(each.register_forward_pre_hook(self._before, with_kwargs=True))
            self._handles.append(self._hook(each))
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, module: nn.Module) -> Any:
        try:
            return module.register_forward_hook(self._after, always_call=True)
        except TypeError:  # torch 2.0 calls no hooks after an exception: _after finds out later
            return module.register_forward_hook(self._after)

    @property
    def running(self) -> str:
        """Name of the innermost module that runs, STEP outside of all."""
        return self.stack[-1].name

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        name = self.names[id(module)]
        caller = self.stack[-1]
        if self.timed:
            self.stack.append(_Frame(name, started=_now()))
            return
        record = self.trace.modules[name]
        if record.first_call is None:
            record.first_call = len(self.trace.order)
        record.calls += 1
        record.input_bytes += size_of((args, kwargs))
        if caller.name not in record.callers:
            record.callers.append(caller.name)
        self.trace.order.append(name)
        caller.called_others = True
        if any(id(tensor) in caller.last_outputs for tensor in tensors_in((args, kwargs))):
            self.trace.feeds.add((caller.last_child, name))
        self.stack.append(_Frame(name))

    def _after(self, module: nn.Module, _args: Any, output: Any) -> None:
        name = self.names[id(module)]
        # A call whose exception its caller handled may have left its frame behind.
        while self.stack[-1].name != name:
            self.stack.pop()
        frame = self.stack.pop()
        record, caller = self.trace.modules[name], self.stack[-1]
        if self.timed:
            spent = _now() - frame.started
            record.own_seconds = (record.own_seconds or 0.0) + spent - frame.in_children
            caller.in_children += spent
            return
        written = size_of(output)
        record.output_bytes += written
        if not self.trace.memory and not frame.called_others:
            record.own_activation_bytes += written
        caller.held = list(tensors_in(output))
        caller.last_child, caller.last_outputs = name, frozenset(id(tensor) for tensor in caller.held)


class OperationWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations for the module that runs, and notes parameters used by another module than their holder."""

    def __init__(self, calls: CallWatch, holders: dict[int, set[str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = calls
        self.holders = holders

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        user, trace = self.calls.running, self.calls.trace
        if user != STEP:
            trace.modules[user].own_operations += operations(func, args, kwargs, output)
            for value in leaves((args, kwargs)):
                held_by = self.holders.get(id(value)) if isinstance(value, torch.Tensor) else None
                if held_by and user not in held_by:
                    trace.uses.update((user, holder) for holder in held_by)
        return output


# What of a parameter is not known where it has no memory; dtype, device and whether it is trained are known everywhere.
_Tensor = torch.Tensor
_FORMS = (_Tensor.size, _Tensor.dim, _Tensor.numel, _Tensor.nelement, _Tensor.stride, _Tensor.__len__, torch.numel)
_FORM_ATTRIBUTES: Any = (_Tensor.shape, _Tensor.ndim)


class FormWatch(TorchFunctionMode):
    """Notes parameters of whose shape another module than their holder makes use."""

    def __init__(self, calls: CallWatch, holders: dict[int, set[str]]) -> None:
        super().__init__()
        self.calls = calls
        self.holders = holders
        self._asks = {*_FORMS, *(attribute.__get__ for attribute in _FORM_ATTRIBUTES)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        user = self.calls.running
        if user != STEP and args and func in self._asks:
            held_by = self.holders.get(id(args[0]))
            if held_by and user not in held_by:
                self.calls.trace.uses.update((user, holder) for holder in held_by)
        return func(*args, **(kwargs or {}))


def operations(func: Any, args: Any, kwargs: Any, output: Any) -> float:
    """Floating point operations of one ATen call: torch's formula where it has one, else one per element written."""
    formula = _formulas().get(func._overloadpacket)
    if formula is not None:
        return float(formula(*args, **kwargs, **{_output_name(): output}))
    if "scaled_dot_product" in func._overloadpacket.__name__:
        return _attention_operations(*args[:3])
    returns = func._schema.returns
    if returns and returns[0].alias_info is not None and not returns[0].alias_info.is_write:
        return 0.0  # a view: nothing is computed
    return float(sum(tensor.numel() for tensor in tensors_in(output)))


def _formulas() -> dict[Any, Any]:
    try:
        from torch.utils.flop_counter import flop_registry
    except ImportError:  # torch 2.0
        return {}
    return flop_registry


@functools.cache
def _output_name() -> str:
    """As what torch's formulas take an operation's output: `out_val`, in older releases `out`."""
    from torch.utils.flop_counter import shape_wrapper

    parameters = inspect.signature(shape_wrapper(tuple), follow_wrapped=False).parameters  # type: ignore[no-untyped-call]
    return "out_val" if "out_val" in parameters else "out"


def _attention_operations(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> float:
    pairs = query.shape[:-1].numel() * key.shape[-2]
    return 2.0 * pairs * (query.shape[-1] + value.shape[-1])


def _now() -> float:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()


class KeptWatch(torch.autograd.graph.saved_tensors_hooks):
    """Adds what autograd keeps for the backward pass to the module that runs; parameters and buffers do not count."""

    def __init__(self, calls: CallWatch, module: nn.Module) -> None:
        super().__init__(self._pack, lambda tensor: tensor)
        self._calls = calls
        held = [*module.parameters(), *module.buffers()]
        self._seen = {tensor.untyped_storage()._cdata for tensor in held if tensor.layout == torch.strided}
        # A storage may be freed and its address used again within a run; the tensors kept here would be kept anyway.
        self._kept: list[torch.Tensor] = []

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        user = self._calls.running
        if user != STEP and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._seen:
                self._seen.add(storage._cdata)
                self._kept.append(tensor.detach())
                self._calls.trace.modules[user].own_activation_bytes += storage.nbytes()
        return tensor
