"""`module.forward` of a module that lies on another rank, called by that name: goes there as a call of the module does.

Not every model that calls `self.layer.forward(x)` means to leave out the layer's hooks; they run on the other rank.
"""

from __future__ import annotations

import types
from typing import Any, Callable

from torch import nn

_FORWARD = "forward"


class RemoteForward:
    """Takes the place of one instance's `forward` on the ranks that do not have its parameters."""

    def __init__(self, module: nn.Module, request: Callable[..., Any]) -> None:
        self.module = module
        self.request = request
        # inspect.signature looks here: transformers' Trainer keeps the columns that a model's forward names.
        self.__wrapped__ = types.MethodType(type(module).forward, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module where it lies."""
        return self.request(self.module, args, kwargs)


def replace(module: nn.Module, request: Callable[..., Any]) -> None:
    """Let `module.forward(...)` be `request(module, args, kwargs)`, unless the instance has a forward of its own."""
    module.__dict__.setdefault(_FORWARD, RemoteForward(module, request))


def restore(module: nn.Module) -> None:
    """Give the module the forward of its class back."""
    if isinstance(module.__dict__.get(_FORWARD), RemoteForward):
        del module.__dict__[_FORWARD]
