"""Placement by hand: `smp.partition`, `smp.set_partition`, and the ranks that their marks mean.

A mark is an attribute on the module, so it survives copies (nn.TransformerEncoder copies its layer) and pickling.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Callable, Iterator

from torch import nn

from .. import checks
from ..exceptions import SMPUnsupportedError, SMPValueError
from ..state import state
from .bonds import indivisible

logger = logging.getLogger("smdistributed.modelparallel")

MARK = "_smp_partition"


class _Contexts(threading.local):
    """The partitions whose contexts this thread is in, outermost first."""

    def __init__(self) -> None:
        self.stack: list[int] = []


_contexts = _Contexts()
_patch_lock = threading.Lock()
_open_contexts = 0
_original_init: Callable[..., None] | None = None


@contextlib.contextmanager
def partition(index: int) -> Iterator[None]:
    """Modules created inside go to partition `index`; of nested contexts the innermost wins.

    Without effect if the configuration has auto_partition (the default). Modules created outside of all contexts go to
    default_partition. Raises SMPValueError for an index that is no partition, NotInitializedError before smp.init().
    """
    _check_index(index, "smp.partition")
    _contexts.stack.append(index)
    _patch(+1)
    try:
        yield
    finally:
        _patch(-1)
        _contexts.stack.pop()


def set_partition(module: nn.Module, index: int) -> None:
    """Places a module that exists, with all modules inside it, in partition `index`; a later call wins over an earlier.

    To be called before the first step; without effect if the configuration has auto_partition. Raises SMPValueError for
    an index that is no partition or a first argument that is no module, SMPUnsupportedError once the model is placed.
    """
    _check_index(index, "smp.set_partition")
    if not isinstance(module, nn.Module):
        checks.refuse("smp.set_partition", "module", module, "an nn.Module of the model")
    if state.model is not None and getattr(state.model, "partitioned", False):
        raise SMPUnsupportedError(
            "smp.set_partition was called after the first step, when modules are on their ranks already: "
            "call it between smp.DistributedModel(...) and the first step"
        )
    for each in module.modules():
        each.__dict__[MARK] = index


def marked(module: nn.Module) -> int | None:
    """The partition in which module itself was put by hand, or None."""
    mark = module.__dict__.get(MARK)
    return mark if isinstance(mark, int) else None


def placed_by_hand(module: nn.Module, default: int) -> dict[str, int]:
    """The partition of every name of `module.named_modules()` by marks; what has none goes to `default`.

    Modules without parameters in them run where their parent does, as in automatic placement. Raises SMPValueError
    where modules that share a parameter, or parts of a module that cannot be divided, would be on different ranks.
    """
    ranks: dict[str, int] = {}
    for name, each in module.named_modules():
        mark = marked(each)
        has_parameters = any(True for _ in each.parameters())
        if name and not has_parameters:
            ranks[name] = ranks[name.rpartition(".")[0]]
        else:
            ranks[name] = default if mark is None else mark
    _check_shared(module, ranks)
    _check_whole(module, ranks)
    return ranks


def _check_index(index: object, what: str) -> None:
    cfg = state.require().cfg
    last = cfg.pipeline_parallel_degree - 1
    if isinstance(index, bool) or not isinstance(index, int):
        checks.refuse(what, "index", index, f"the number of a partition, from 0 to {last}")
    if not 0 <= index <= last:
        raise SMPValueError(
            f"{what} was given partition {index}: with pipeline_parallel_degree {last + 1} they are 0 to {last}"
        )
    if cfg.auto_partition:
        logger.info("%s(%d) has no effect: auto_partition is on", what, index)


def _check_shared(module: nn.Module, ranks: dict[str, int]) -> None:
    holders: dict[int, tuple[str, str]] = {}
    for name, each in module.named_modules():
        for key, parameter in each.named_parameters(recurse=False):
            first, first_key = holders.setdefault(id(parameter), (name, key))
            if ranks[first] != ranks[name]:
                raise SMPValueError(
                    f"{_shown(first)} (partition {ranks[first]}) and {_shown(name)} (partition {ranks[name]}) share "
                    f"the parameter {first_key!r}, which can be on one rank only: put both in the same partition"
                )


def _check_whole(module: nn.Module, ranks: dict[str, int]) -> None:
    for name, each in module.named_modules():
        if not indivisible(each):
            continue
        for inner, _ in each.named_modules(prefix=name):
            if inner in ranks and ranks[inner] != ranks[name]:
                raise SMPValueError(
                    f"{_shown(inner)} is in partition {ranks[inner]} and {_shown(name)} around it in partition "
                    f"{ranks[name]}, but a {type(each).__name__} uses the parameters inside it directly: "
                    "put all of it in one partition"
                )


def _shown(name: str) -> str:
    return f"the module {name!r}" if name else "the model itself"


def _patch(step: int) -> None:
    """nn.Module.__init__ marks new modules while any thread is in a context, and is as before otherwise."""
    global _open_contexts, _original_init
    with _patch_lock:
        _open_contexts += step
        if _open_contexts and _original_init is None:
            _original_init = nn.Module.__init__
            nn.Module.__init__ = _marking_init  # type: ignore[method-assign]
        elif not _open_contexts and _original_init is not None:
            nn.Module.__init__ = _original_init  # type: ignore[method-assign]
            _original_init = None


def _marking_init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
    original = _original_init
    if original is None:  # the last context ended in another thread meanwhile
        nn.Module.__init__(self, *args, **kwargs)
        return
    original(self, *args, **kwargs)
    if _contexts.stack:
        self.__dict__[MARK] = _contexts.stack[-1]
