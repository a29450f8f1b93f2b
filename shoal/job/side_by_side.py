"""Do the same to several hosts at once: what the engine takes a third of a second for, it does for all in that time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_AT_ONCE = 8  # requests; the engine works on no more of them than it has cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def side_by_side(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return what `function` returns for each of `items`, in their order.

    All calls have ended when it returns, or raises what the first of them in that order raised.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _AT_ONCE)) as pool:
        return [future.result() for future in [pool.submit(function, item) for item in items]]
