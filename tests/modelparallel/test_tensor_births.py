"""Modules remember the arguments they were created with, and are otherwise as they were."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Scaled(nn.Module):
    def __init__(self, size: int, function: Any = None, *, bias: bool = True) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size, bias)
        self.factor = 2.0 if function is None else function(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.factor


class Own(Generic[T], nn.Module):
    """Has a __new__ of its own."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__new__(cls)
        made.__dict__["early"] = args
        return made

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, 1)


def births() -> Any:
    from smdistributed.modelparallel.torch.tp import births as found

    return found


def test_arguments_are_known_also_of_copies() -> None:
    known = births().arguments_of
    module = Scaled(3, bias=False)
    assert known(module) == ((3,), {"bias": False})
    assert known(copy.deepcopy(module)) == ((3,), {"bias": False})
    assert known(Own(4)) is not None
    assert Own(4).__dict__["early"] == (4,)


def test_modules_pickle_whatever_they_were_created_with() -> None:
    module = Scaled(3, lambda x: 3 * x)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert again.factor == 3.0
    assert torch.equal(again.inner.weight, module.inner.weight)
    assert births().arguments_of(pickle.loads(pickle.dumps(module))) is None


def test_modules_can_be_scripted_and_traced() -> None:
    module = Scaled(3)
    x = torch.randn(2, 3)
    torch.testing.assert_close(torch.jit.trace(module, x)(x), module(x))
    torch.testing.assert_close(torch.jit.script(module)(x), module(x))
    torch.testing.assert_close(torch.fx.symbolic_trace(module)(x), module(x))


def test_what_is_remembered_is_dropped_on_demand() -> None:
    class Held:
        pass

    held = Held()
    alive = weakref.ref(held)
    module = Scaled(3, lambda x, held=held: x)
    births().forget(module)
    del held
    gc.collect()
    assert alive() is None
    assert births().arguments_of(module) is None
