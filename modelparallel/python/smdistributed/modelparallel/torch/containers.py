"""Containers of tensors: walk one and build the like of it with other contents."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Callable, Iterable

import torch


def items_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the (key, item) pairs of a list, tuple, set or mapping; None for anything else, a shape included."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, torch.Size):
        return None
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(enumerate(value))
    return None


def rebuilt(value: Any, items: Iterable[Any]) -> Any:
    """Return a container of the same type as `value` with `items` in the order of `items_of(value)`."""
    if isinstance(value, Mapping):
        if type(value) is dict:
            return dict(zip(value, items))
        result: Any = copy.copy(value)  # a subclass knows how it is made: ModelOutput, BatchEncoding, OrderedDict
        for key, item in zip(list(value), items):
            result[key] = item
        return result
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*items)
    return type(value)(items)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return `value` with `function` applied to everything in it that is no container."""
    items = items_of(value)
    if items is None:
        return function(value)
    return rebuilt(value, [mapped(function, item) for _, item in items])
