"""Imports that a user waits for."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Import in here without looking for garbage: modules are none, and the looking takes a quarter of the time.

    What has been imported is not looked through later either, which makes the end of the command quicker as well.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
