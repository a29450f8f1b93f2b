"""How every benchmark ends: with an exit code, and one line if it could not measure."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended


def run(main: Callable[[], int], unable: tuple[type[Exception], ...], left: str = "nothing was left behind") -> int:
    """Return the exit code of `main`: its own, 1 where it raised one of `unable`, 130 after Ctrl-C.

    `left` says what an interrupted run leaves. SIGTERM ends it in the same way: what was started goes with the stack.
    """
    signal.signal(signal.SIGTERM, _stop)
    name = f"benchmarks/{Path(sys.argv[0]).name}"
    try:
        return main()
    except unable as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted; {left}", file=sys.stderr)
        return INTERRUPTED


def _stop(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
