"""A thread comes back from gloo's set-up, which C++ calls without the interpreter, while that ends."""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta
from typing import Any

from smdistributed.dataparallel.compiled import _C
from torch._C import _distributed_c10d as c10d


class Slow:
    """Goes when the interpreter has begun to end, and takes its time."""

    def __del__(self) -> None:
        time.sleep(2)


def make_group() -> None:
    gloo: Any = c10d.ProcessGroupGloo
    if "expendable" in sys.argv:
        _C.make_expendable()
    gloo(c10d.HashStore(), 0, 2, timedelta(seconds=1))


sys.slow = Slow()  # type: ignore[attr-defined]
threading.Thread(target=make_group, daemon=True).start()
time.sleep(0.3)
