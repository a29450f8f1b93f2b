"""`smp.tensor_parallelism` and `smp.set_tensor_parallelism`: which modules a script asks to distribute."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

from torch import nn

from .. import checks
from ..exceptions import SMPUnsupportedError
from ..state import state
from .births import Wish, set_wish, wishes


class tensor_parallelism(contextlib.ContextDecorator):  # noqa: N801
    """Supported modules created inside are distributed at smp.DistributedModel(); a context manager or a decorator.

    enabled: False keeps them whole; of nested contexts the innermost wins. Others by keyword, such as fused_softmax or
    fused_bias_gelu: constructor arguments of distributed modules, which replace those that the original modules imply;
    what a module does not take does not concern it. Of supported modules inside each other the outermost is
    distributed. One that shares weights with a module outside it, or whose sizes tensor_parallel_degree does not
    divide, stays.
    """

    def __init__(self, enabled: bool = True, **kwargs: Any) -> None:
        self._wish = Wish(checks.flag("smp.tensor_parallelism", "enabled", enabled), kwargs)
        self._depths: list[int] = []

    def __enter__(self) -> tensor_parallelism:
        self._depths.append(len(wishes.stack))
        wishes.stack.append(self._wish)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del wishes.stack[self._depths.pop() :]


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **kwargs: Any) -> None:
    """As the context, for `module` and all modules in it, after they were created; a later call wins over an earlier.

    Raises SMPValueError for what is no module, SMPUnsupportedError after smp.DistributedModel().
    """
    if not isinstance(module, nn.Module):
        checks.refuse("smp.set_tensor_parallelism", "module", module, "an nn.Module of the model")
    enabled = checks.flag("smp.set_tensor_parallelism", "enabled", enabled)
    if state.model is not None:
        raise SMPUnsupportedError(
            "smp.set_tensor_parallelism was called after smp.DistributedModel(), which distributes: call it before"
        )
    for each in module.modules():
        set_wish(each, Wish(enabled, kwargs))
