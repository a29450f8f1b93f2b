"""A thread comes back from gloo's set-up, which C++ calls without the interpreter, while that ends."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from smdistributed.dataparallel.compiled import _C
from torch._C import _distributed_c10d as c10d


class Slow:
    """Goes when the interpreter has begun to end, and takes its time."""

    # Bound here: this module's names are gone by then.
    def __del__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(4)


def meet_nobody() -> None:
    if "expendable" in sys.argv:
        _C.make_expendable()
    gloo: Any = c10d.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=2)
    gloo(c10d.HashStore(), 0, 2, options)


sys.slow = Slow()  # type: ignore[attr-defined]
threading.Thread(target=meet_nobody, daemon=True).start()
time.sleep(0.3)
