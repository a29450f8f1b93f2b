"""Something done again and again while a block runs, and surely not any more after it."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeatedly(work: Callable[[], object], seconds: float) -> Iterator[None]:
    """Do `work` in a thread of its own, so many seconds apart, until the block ends."""
    stop = threading.Event()

    def go() -> None:
        while not stop.wait(seconds):
            with contextlib.suppress(OSError):  # a full disk: whoever must write something will say so
                work()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
