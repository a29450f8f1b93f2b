"""What a message is on a connection: its fields and the forms of its tensors in one head, the tensors' bytes behind it.

The messages of every call are numbers, names and bytes: marshal writes those ten times as fast as pickle does, which
counts, for a call of a small module waits until two heads are written and read. The others (failures, farewells) are
pickled into the head.
"""

from __future__ import annotations

import ctypes
import marshal
import pickle
from typing import Any, NamedTuple, Optional, Tuple

import torch

from . import messages as say
from .ambient import Ambient

# dtype by name, shape, the order of its dimensions from the slowest to the fastest in memory, whether it needs a
# gradient
_Form = Tuple[str, Tuple[int, ...], Optional[Tuple[int, ...]], bool]
_PICKLED = -1
_QUICK: tuple[Any, ...] = (
    say.Forward,
    say.Backward,
    say.Reply,
    say.Output,
    say.MicrobatchDone,
    say.BodiesDone,
    say.StepEnd,
)
_NUMBER = {kind: number for number, kind in enumerate(_QUICK)}
_NAMES: dict[torch.dtype, str] = {
    value: name
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype) and str(value) == f"torch.{name}"
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class Form(NamedTuple):
    """What a tensor's bytes mean: `order` lists its dimensions from the slowest to the fastest in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    requires_grad: bool


def encode(message: Any, forms: list[Form]) -> bytes:
    """Return the head of a picklable message and of tensors of these forms."""
    number = _NUMBER.get(type(message), _PICKLED)
    fields: Any
    if number == _PICKLED:
        fields = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    elif number == 0:
        fields = (*message[:3], _plain(message.ambient), *message[4:])
    else:
        fields = tuple(message)
    plain: list[_Form] = [(_NAMES[form.dtype], form.shape, form.order, form.requires_grad) for form in forms]
    return marshal.dumps((number, fields, plain))


def decode(head: bytearray | memoryview) -> tuple[Any, list[Form]]:
    """Return what `encode` was given."""
    number, fields, plain = marshal.loads(head)
    message: Any
    if number == _PICKLED:
        message = pickle.loads(fields)
    elif number == 0:
        message = say.Forward._make((*fields[:3], _ambient(fields[3]), *fields[4:]))
    else:
        message = _QUICK[number](*fields)
    return message, [Form(_DTYPES[name], shape, order, needs) for name, shape, order, needs in plain]


def _plain(ambient: Ambient) -> tuple[bool, bool, tuple[tuple[str, bool, str], ...]]:
    grad, inference, autocast = ambient
    return grad, inference, tuple((device, enabled, _NAMES[dtype]) for device, enabled, dtype in autocast)


def _ambient(plain: tuple[bool, bool, tuple[tuple[str, bool, str], ...]]) -> Ambient:
    grad, inference, autocast = plain
    return Ambient(grad, inference, tuple((device, enabled, _DTYPES[name]) for device, enabled, name in autocast))


def dense(tensor: torch.Tensor) -> tuple[torch.Tensor, Form]:
    """Return the tensor as it travels, contiguous in the memory of the host, and what its bytes mean."""
    needs = tensor.requires_grad
    if tensor.layout is torch.strided and tensor.is_cpu and tensor.is_contiguous() and not _lazy(tensor):
        return tensor.detach(), Form(tensor.dtype, tuple(tensor.shape), None, needs)
    # A gradient may be sparse, and a tensor may be the conjugate or the negative of what its memory holds.
    flat = (tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()).resolve_conj()
    flat = flat.resolve_neg()
    if flat.device.type != "cpu":
        flat = flat.cpu()
    order: tuple[int, ...] | None = None
    if not flat.is_contiguous():
        strides = flat.stride()
        order = tuple(sorted(range(flat.dim()), key=lambda d: (-strides[d], d)))
        permuted = flat.permute(order)
        if permuted.is_contiguous():
            flat = permuted
        else:
            flat, order = flat.contiguous(), None
    return flat, Form(tensor.dtype, tuple(flat.shape), order, needs)


def _lazy(tensor: torch.Tensor) -> bool:
    """Whether its memory holds the conjugate or the negative of its values."""
    return tensor.is_conj() or tensor.is_neg()


def empty(form: Form) -> torch.Tensor:
    """Return memory for the bytes of a tensor of that form, contiguous."""
    # Said, since whoever reads for this rank may do so inside `with torch.device(...)`.
    return torch.empty(form.shape, dtype=form.dtype, device="cpu")


def placed(flat: torch.Tensor, form: Form, device: torch.device) -> torch.Tensor:
    """Return the tensor that arrived in `flat`, on `device`."""
    if form.order is not None:
        flat = flat.permute(sorted(range(len(form.order)), key=form.order.__getitem__))
    return flat if device.type == "cpu" else flat.to(device)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor; it is valid as long as the tensor lives."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
