"""Objects on their way to another rank: pickled, with tensors, parameters and modules of the model taken out.

Tensors travel beside the pickle as raw bytes (see link.py), each once however often the object names it. A parameter
that the receiver owns, and a module of the model, travel as names: the receiver has its own. A tensor by itself, and
arguments that are all tensors, need no pickle.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Callable, Sequence

import torch
from torch import nn

from ..exceptions import SMPUnsupportedError

PROTOCOL = 5
# The first byte of what is no pickle: those begin with 0x80.
_TENSOR, _ARGUMENTS = b"t", b"a"
_MOST = 64


class Directory:
    """The names of a model's modules and parameters, and the pp rank that owns each.

    `modules`: qualified name -> module. `owner`: qualified module name -> pp rank.
    """

    def __init__(self, root: nn.Module, owner: dict[str, int]) -> None:
        self.modules: dict[str, nn.Module] = dict(root.named_modules())
        self.owner = owner
        self._module_names = {id(module): name for name, module in self.modules.items()}
        self._parameters: dict[str, nn.Parameter] = {}
        self._parameter_names: dict[int, tuple[str, int]] = {}
        for name, module in self.modules.items():
            for local, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self._parameter_names:
                    full = f"{name}.{local}" if name else local
                    self._parameters[full] = parameter
                    self._parameter_names[id(parameter)] = (full, owner[name])

    def module(self, name: str) -> nn.Module:
        """Return the module of that qualified name, or the checkpointed group of layers that it names."""
        found = self.modules.get(name)
        if found is None:
            from ..activation import resolve

            found = resolve(self.modules[""], name)
        if found is None:
            raise KeyError(f"no module {name!r}")
        return found

    def module_name(self, module: nn.Module) -> str | None:
        """Return the qualified name of `module`, or None where it is not of this model."""
        return self._module_names.get(id(module))

    def parameter_name(self, tensor: torch.Tensor) -> tuple[str, int] | None:
        """Return the qualified name and the owner of a parameter, or None where it is not of this model."""
        return self._parameter_names.get(id(tensor))

    def parameter(self, name: str) -> nn.Parameter:
        """Return the parameter of that qualified name."""
        return self._parameters[name]


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, directory: Directory, receiver: int | None) -> None:
        super().__init__(stream, protocol=PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self._index: dict[int, int] = {}
        self._directory = directory
        self._receiver = receiver

    def persistent_id(self, obj: Any) -> tuple[str, Any] | None:
        if isinstance(obj, torch.Tensor):
            if obj.layout == torch.strided:
                return self._tensor(obj)
            _check_sparse(obj)
        if isinstance(obj, nn.Module):
            name = self._directory.module_name(obj)
            return None if name is None else ("module", name)
        return None

    def _tensor(self, tensor: torch.Tensor) -> tuple[str, Any]:
        if isinstance(tensor, nn.Parameter):
            known = self._directory.parameter_name(tensor)
            if known is not None and known[1] == self._receiver:
                return "parameter", known[0]
        index = self._index.get(id(tensor))
        if index is None:
            index = self._index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return "tensor", index


def _check_sparse(tensor: torch.Tensor) -> None:
    """Leave a sparse tensor to its own pickling, which names the dense ones it consists of."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError("a sparse tensor that requires a gradient: pass it dense (to_dense())")


class _Unpickler(pickle.Unpickler):
    def __init__(self, blob: bytes, tensors: Sequence[torch.Tensor], directory: Directory) -> None:
        super().__init__(io.BytesIO(blob))
        self._find: dict[str, Callable[[Any], Any]] = {
            "tensor": tensors.__getitem__,
            "parameter": directory.parameter,
            "module": directory.modules.__getitem__,
        }

    def persistent_load(self, pid: tuple[str, Any]) -> Any:
        kind, key = pid
        return self._find[kind](key)


def pack(obj: Any, directory: Directory, receiver: int | None, what: str) -> tuple[bytes, list[torch.Tensor]]:
    """Return `obj` as a pickle and the tensors it names by number.

    Args:
        obj: any picklable object, with tensors anywhere in it.
        directory: the model's names.
        receiver: the pp rank it goes to, None for several: a parameter that this rank owns travels as a name.
        what: names `obj` in the error.

    Raises:
        SMPUnsupportedError: something in it cannot be pickled.
    """
    plain = _plain(obj)
    if plain is not None:
        return plain
    stream = io.BytesIO()
    pickler = _Pickler(stream, directory, receiver)
    try:
        pickler.dump(obj)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SMPUnsupportedError(
            f"{what} cannot be sent to another rank: {error}; pass only what pickle accepts between modules on "
            "different ranks, or place both on one rank with smp.set_partition"
        ) from error
    return stream.getvalue(), pickler.tensors


def unpack(blob: bytes, tensors: Sequence[torch.Tensor], directory: Directory) -> Any:
    """Return the object that `pack` made `blob` of, with `tensors` in place of those that it took out."""
    if blob[:1] == _ARGUMENTS:
        return tuple(tensors[: blob[1]]), {}
    if blob == _TENSOR:
        return tensors[0]
    return _Unpickler(blob, tensors, directory).load()


def _plain(obj: Any) -> tuple[bytes, list[torch.Tensor]] | None:
    """Return what most calls send without a pickle: a tensor, or the arguments of a call that are tensors by place."""
    if _travels(obj):
        return _TENSOR, [obj]
    if type(obj) is not tuple or len(obj) != 2 or type(obj[0]) is not tuple:
        return None
    if type(obj[1]) is not dict or obj[1]:
        return None
    tensors = list(obj[0])
    if len(tensors) > _MOST or not all(map(_travels, tensors)) or len(set(map(id, tensors))) < len(tensors):
        return None
    return _ARGUMENTS + bytes((len(tensors),)), tensors


def _travels(obj: Any) -> bool:
    """Whether it is a tensor like any other: no parameter, which may be the receiver's, and of no class of its own."""
    return type(obj) is torch.Tensor and obj.layout == torch.strided
