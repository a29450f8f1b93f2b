"""Which module classes have a distributed counterpart, and how their arguments and results are translated."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Tuple, TypeVar

from torch import nn

from .. import checks
from ..exceptions import SMPValueError
from . import births

Arguments = Tuple[Iterable[Any], Dict[str, Any]]
Hook = Callable[..., Any]
Class = TypeVar("Class", bound=type)


class CannotDistribute(Exception):  # noqa: N818
    """Raised by an init_hook of this library: why a module of these arguments has no distributed counterpart."""


@dataclass(frozen=True)
class Counterpart:
    """How a class of modules is distributed.

    from_module: the arguments of the distributed module from an original one; used in place of init_hook where the
    original's attributes say more than its constructor's arguments. return_hook_takes_inputs: it is given, after the
    output, what forward_hook made of the arguments.
    """

    dist_module: type[nn.Module]
    init_hook: Hook | None = None
    forward_hook: Hook | None = None
    return_hook: Hook | None = None
    from_module: Callable[[nn.Module], Arguments] | None = None
    return_hook_takes_inputs: bool = False

    def arguments(self, module: nn.Module) -> Arguments:
        """The positional and keyword arguments of the counterpart of `module`; raises CannotDistribute."""
        if self.from_module is not None:
            return self.from_module(module)
        known = births.arguments_of(module)
        if known is None:
            raise CannotDistribute("the arguments it was created with are not known")
        args, kwargs = known
        found = (args, kwargs) if self.init_hook is None else self.init_hook(*args, **kwargs)
        return _checked_arguments(found, "init_hook", type(module).__name__)


_counterparts: dict[type, Counterpart] = {}


def add(module_cls: type, counterpart: Counterpart) -> None:
    """Registers without checks; for the library's own hooks."""
    _counterparts[module_cls] = counterpart


def find(module_cls: type) -> Counterpart | None:
    """The counterpart of exactly this class: a subclass may compute something else."""
    if module_cls not in _counterparts and module_cls.__module__.startswith("transformers.models."):
        from ..nn import huggingface

        huggingface.register(module_cls)
    return _counterparts.get(module_cls)


def tp_register_with_module(
    module_cls: type,
    dist_module: type[nn.Module],
    init_hook: Hook | None = None,
    forward_hook: Hook | None = None,
    return_hook: Hook | None = None,
) -> None:
    """Registers `dist_module`, a class of smp.nn, as the distributed counterpart of the class `module_cls`.

    init_hook, forward_hook: take what the original's __init__ (forward) takes, without self, and return the tuple
    (args, kwargs) for that of dist_module. Their signatures must be those of the methods exactly: names, order and
    defaults; a hook that takes (*args, **kwargs) fits all. return_hook: takes what dist_module returns, returns what
    the original would. A later registration replaces an earlier. Raises SMPValueError for what does not fit.
    """
    from ..nn.module import DistributedModule

    if not (isinstance(module_cls, type) and issubclass(module_cls, nn.Module)):
        raise SMPValueError(f"smp.tp_register: {_shown(module_cls)} is no subclass of torch.nn.Module: give one")
    if not (isinstance(dist_module, type) and issubclass(dist_module, DistributedModule)):
        raise SMPValueError(
            f"smp.tp_register: {_shown(dist_module)} is no subclass of smp.nn.DistributedModule: give one of smp.nn"
        )
    _check_signature(module_cls, "__init__", init_hook, "init_hook")
    _check_signature(module_cls, "forward", forward_hook, "forward_hook")
    if return_hook is not None:
        checks.function("smp.tp_register", "return_hook", return_hook)
    add(module_cls, Counterpart(dist_module, init_hook, forward_hook, return_hook))


class tp_register:  # noqa: N801
    """A decorator of module classes: as tp_register_with_module for the class that it decorates, which it returns."""

    def __init__(
        self,
        dist_module: type[nn.Module],
        init_hook: Hook | None = None,
        forward_hook: Hook | None = None,
        return_hook: Hook | None = None,
    ) -> None:
        self._counterpart = (dist_module, init_hook, forward_hook, return_hook)

    def __call__(self, module_cls: Class) -> Class:
        """Registers."""
        tp_register_with_module(module_cls, *self._counterpart)
        return module_cls


def translated(hook: Hook | None, name: str, args: Any, kwargs: Any) -> Any:
    """What a hook makes of arguments, checked."""
    return (args, kwargs) if hook is None else _checked_arguments(hook(*args, **kwargs), name, "the call")


def _checked_arguments(found: Any, hook: str, what: str) -> Arguments:
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
        raise SMPValueError(f"the {hook} for {what} returned {found!r}: it must return a tuple (args, kwargs)")
    return tuple(found[0]), found[1]


def _check_signature(module_cls: type, method: str, hook: Hook | None, name: str) -> None:
    if hook is None:
        return
    checks.function("smp.tp_register", name, hook)
    wanted = list(inspect.signature(getattr(module_cls, method)).parameters.values())[1:]
    given = list(inspect.signature(hook).parameters.values())
    if {one.kind for one in given} == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return
    if [_essence(one) for one in given] != [_essence(one) for one in wanted]:
        shown = [f"({', '.join(str(one.replace(annotation=one.empty)) for one in some)})" for some in (given, wanted)]
        raise SMPValueError(
            f"smp.tp_register: {name} takes {shown[0]}: it must take what {module_cls.__name__}.{method} takes, "
            f"{shown[1]}"
        )


def _essence(parameter: inspect.Parameter) -> tuple[str, Any, str]:
    return parameter.name, parameter.kind, repr(parameter.default)


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"
