"""How every benchmark ends: with an exit code, and one line if it could not measure."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

NOTHING_MEASURED = "nothing was measured: every library is absent or failed; why is in the JSON line"


class Terminated(KeyboardInterrupt):
    """SIGTERM came: everything ends as after Ctrl-C, but for the exit code."""


def run(main: Callable[[], int], unable: tuple[type[Exception], ...], left: str = "nothing was left behind") -> int:
    """Return the exit code of `main`: its own, 1 where it raised one of `unable`, 130 after Ctrl-C, 143 after SIGTERM
    (what a shell reports of programs that these end).

    `left` says what an interrupted run leaves; what was started goes with the stack.
    """
    # Python leaves SIGINT alone where it was ignored, as a shell that takes no commands does for `command &`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return main()
    except unable as error:
        say(str(error))
        return 1
    except KeyboardInterrupt as stop:
        say(f"interrupted; {left}")
        return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def say(text: str) -> None:
    """One line on stderr, from the program that was started."""
    print(f"benchmarks/{Path(sys.argv[0]).name}: {text}", file=sys.stderr)


def _terminate(_signum: int, _frame: FrameType | None) -> None:
    raise Terminated
