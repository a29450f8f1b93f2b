"""What is remembered of a module from its creation until the model is distributed: its arguments, and whether to
split it.

Scripts may ask for tensor parallelism, and register classes, after a model exists (`set_tensor_parallelism`,
`tp_register_with_module`), so the arguments of every constructor are kept from the import of this package on.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from torch import nn

_BIRTH = "_smp_tp_birth"
_WISH = "_smp_tp_wish"


@dataclass(frozen=True)
class Wish:
    """Whether a module shall be distributed, and arguments that replace those its distributed counterpart would get."""

    enabled: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)


class Birth:
    """The arguments of a module's constructor. A copy of the module shares them; a pickle of it leaves them out."""

    def __init__(self, arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None) -> None:
        self.arguments = arguments

    def __deepcopy__(self, memo: dict[int, Any]) -> Birth:
        return self

    def __reduce__(self) -> Any:
        return Birth, ()


class _Wishes(threading.local):
    """The contexts that this thread is in, outermost first."""

    def __init__(self) -> None:
        self.stack: list[Wish] = []


wishes = _Wishes()


def arguments_of(module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The positional and keyword arguments that `module` was created with; None if they are not known."""
    birth = module.__dict__.get(_BIRTH)
    return birth.arguments if isinstance(birth, Birth) else None


def wish_of(module: nn.Module) -> Wish | None:
    """What was asked for this module; None if nothing was."""
    wish = module.__dict__.get(_WISH)
    return wish if isinstance(wish, Wish) else None


def set_wish(module: nn.Module, wish: Wish) -> None:
    """Asks for this module, not for those inside it."""
    module.__dict__[_WISH] = wish


def forget(module: nn.Module) -> None:
    """Drops what is remembered of `module` and all modules in it: arguments may hold modules that were replaced."""
    for each in module.modules():
        each.__dict__.pop(_BIRTH, None)
        each.__dict__.pop(_WISH, None)


def _new(cls: type, *args: Any, **kwargs: Any) -> Any:
    made: Any = object.__new__(cls)
    # torch's own modules say in attributes what they were made with; and containers are given modules, not sizes.
    if not cls.__module__.startswith("torch.nn."):
        made.__dict__[_BIRTH] = Birth((args, kwargs))
    if wishes.stack:
        made.__dict__[_WISH] = wishes.stack[-1]
    return made


def remember() -> None:
    """From now on, modules remember; called once, when the package is imported."""
    if "__new__" not in nn.Module.__dict__:
        nn.Module.__new__ = staticmethod(_new)  # type: ignore[method-assign]
