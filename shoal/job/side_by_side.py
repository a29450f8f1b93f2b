"""Do the same to several hosts at once, or to the next while one is in use: the engine answers each after a while."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_AT_ONCE = 8  # requests

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


def one_ahead(
    function: Callable[[_Item], _Result], items: Sequence[_Item], discard: Callable[[_Result], None]
) -> Generator[_Result, None, None]:
    """Yield what `function` returns for each of `items`, in their order; the next call runs while the caller uses one.

    A caller that ends early has the result it never saw discarded, when the generator is closed.
    """
    coming: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(2) as pool:
        try:
            for item in items:
                coming.append(pool.submit(function, item))
                if len(coming) > 1:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for unseen in coming:
                if unseen.exception() is None:
                    discard(unseen.result())
