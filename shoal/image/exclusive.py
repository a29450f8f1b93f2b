"""One at a time: threads of this process and other processes wait for one another at a file."""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_S = 0.2


@contextlib.contextmanager
def exclusive(path: Path, check: Callable[[], None]) -> Iterator[None]:
    """Hold the file `path`; while another holds it, `check` is called now and then, and may end the wait by raising."""
    with path.open("w") as stream:
        while True:
            check()
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_S)
            else:
                break
        yield
