"""What a rank tells the others about an exception: enough to raise one that shows where and why it began."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from typing import NamedTuple

from ..exceptions import PeerLostError, SMPError, StepError, StepTimeoutError
from .tasks import Task

_KINDS = {kind.__name__: kind for kind in (PeerLostError, StepTimeoutError)}


class Failure(NamedTuple):
    """The first exception of a step; picklable.

    Attributes:
        rank: the global rank where it was raised.
        microbatch: its micro-batch, None where there is none.
        doing: what the task ran, in words.
        kind: the name of the exception's class.
        text: its message.
        trace: the traceback as text.
        exception: the exception itself, pickled; None where it cannot be.
    """

    rank: int
    microbatch: int | None
    doing: str
    kind: str
    text: str
    trace: str
    exception: bytes | None

    def raised(self) -> SMPError:
        """Return the exception that a rank raises which did not fail itself."""
        if self.kind in _KINDS:
            return _KINDS[self.kind](self.text)
        where = "" if self.microbatch is None else f", micro-batch {self.microbatch}"
        error = StepError(
            f"rank {self.rank}{where}, {self.doing}: {self.kind}: {self.text}",
            rank=self.rank,
            microbatch=self.microbatch,
            module=self.doing,
            remote_traceback=self.trace,
        )
        if self.exception is not None:
            with contextlib.suppress(Exception):  # a class that only the other rank has: its text is there
                error.__cause__ = pickle.loads(self.exception)
        return error


def failure_of(error: BaseException, rank: int, task: Task | None) -> Failure:
    """Return the failure that `error`, raised by `task` on `rank`, began or continues."""
    found = getattr(error, "_smp_failure", None)
    if isinstance(found, Failure):
        return found
    try:
        pickled: bytes | None = pickle.dumps(error)
    except Exception:  # an exception of any class: what its pickling raises is its own affair
        pickled = None
    return Failure(
        rank,
        task.label[0] if task is not None else None,
        task.doing if task is not None else "between tasks",
        type(error).__name__,
        str(error),
        "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        pickled,
    )


def error_of(failure: Failure) -> SMPError:
    """Return an exception to raise for `failure`; `failure_of` finds the failure again in it."""
    error = failure.raised()
    error._smp_failure = failure  # type: ignore[attr-defined]
    return error
