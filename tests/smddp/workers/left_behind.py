"""A thread comes back from torch's C++, which it called without the interpreter, while that ends."""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta

from smdistributed.dataparallel.compiled import _C
from torch._C import _distributed_c10d as c10d


class Slow:
    """Goes when the interpreter has begun to end, and takes its time."""

    def __del__(self) -> None:
        time.sleep(3)


def wait_in_vain() -> None:
    if "expendable" in sys.argv:
        _C.make_expendable()
    c10d.HashStore().wait(["nothing"], timedelta(seconds=1))


sys.slow = Slow()  # type: ignore[attr-defined]
threading.Thread(target=wait_in_vain, daemon=True).start()
time.sleep(0.1)
