"""The signals that ask `shoal run` to stop, as events of the job."""

import contextlib
import queue
import signal
from collections.abc import Iterator
from types import FrameType

# A host that ended and its exit code; something that went wrong; None: the user has interrupted.
Event = tuple[str, int] | BaseException | None


class Interrupts:
    """What the user has asked for so far, and where to say so at once."""

    def __init__(self) -> None:
        self.numbers: list[int] = []  # of the signals, in their order
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()  # of the present attempt

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def exit_code(self) -> int:
        """The exit code of a command that these stopped."""
        return 128 + (self.numbers[0] if self.numbers else signal.SIGINT)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals, until the job is cleaned up."""

        def note(number: int, _frame: FrameType | None) -> None:
            self.numbers.append(number)
            self.events.put(None)

        # A signal that whoever started us had ignored (nohup) stays ignored.
        wanted = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
