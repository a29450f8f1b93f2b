"""News of failures: from this rank to all others, and from other pipelines to this one.

A failure in one pipeline must end the step in all replicas, which would else wait in an average for ever. The first
rank of each pipeline has a connection to the first rank of the first one: over these alarms travel, at most four hops.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, Iterator, Mapping

import torch

from ..exceptions import PeerLostError, SMPError
from . import messages as say
from .failures import Failure, error_of, failure_of
from .link import Link

# How long a rank whose collective fails, or that cannot send, waits for what the other said before it went.
LAST_WORDS_SECONDS = 5.0


class Relay:
    """What this rank knows of failures, and whom it tells.

    Args:
        rank: this rank, global.
        step: returns the number of the step that is under way, or was last.
        deliver: takes an alarm of another pipeline: ends the step that is under way, or calls `keep`.
    """

    def __init__(self, rank: int, step: Callable[[], int], deliver: Callable[[say.Abort], None]) -> None:
        self._rank = rank
        self._step = step
        self._deliver = deliver
        self._lock = threading.Lock()
        self._late: Failure | None = None
        self._lost: Failure | None = None
        self._lost_steps = 0  # how many steps the peer ended before it went
        self._pipeline: Mapping[int, Link] = {}
        self._replicas: Mapping[int, Link] = {}
        self._gone: set[Link] = set()

    def attach(self, pipeline: Mapping[int, Link], replicas: Mapping[int, Link]) -> None:
        """Take the connections to the other ranks of this pipeline, and to other pipelines' first ranks."""
        self._pipeline, self._replicas = pipeline, replicas

    def forget(self, link: Link) -> None:
        """Tell this peer nothing more: it is gone."""
        self._gone.add(link)

    @property
    def reachable(self) -> list[Link]:
        """The connections over which somebody still listens."""
        return [link for link in [*self._pipeline.values(), *self._replicas.values()] if link not in self._gone]

    def tell(self, message: Any) -> None:
        """Tell all that can still be told; on any thread, so without waiting for those that are gone."""
        for link in self.reachable:
            with contextlib.suppress(OSError):
                link.send(message, [])

    def keep(self, abort: say.Abort) -> None:
        """Keep a failure that came between two steps for `check` and the next step; pass it on, once."""
        with self._lock:
            if self._late is not None:
                return
            self._late = abort.failure
        threading.Thread(target=self.tell, args=(abort,), daemon=True).start()

    def lost(self, failure: Failure, steps: int) -> None:
        """Keep that a rank of this pipeline went after `steps` steps: no step can begin."""
        with self._lock:
            self._lost_steps = steps if self._lost is None else min(steps, self._lost_steps)
            self._lost = failure

    def take(self) -> Failure | None:
        """Return the failure that a new step must begin with; a kept one once."""
        with self._lock:
            failure, self._late = self._late or self._lost, None
            return failure

    def check(self) -> None:
        """Raise if another replica failed, or went, since this step began.

        Raises:
            SMPError: what happened there.
        """
        failure = self._late or (self._lost if self._lost_steps < self._step() else None)
        if failure is not None:
            raise error_of(failure)

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Run collectives; where one fails because a replica went, raise what that replica said rather than that."""
        try:
            yield
        except SMPError:
            raise
        except RuntimeError:
            deadline = time.monotonic() + LAST_WORDS_SECONDS
            while time.monotonic() < deadline:
                self.check()
                time.sleep(0.05)
            raise

    def received_alarm(self, link: Link, message: Any, _tensors: list[tuple[torch.Tensor, bool]]) -> None:
        """Take a message of another replica: that it failed, or that it ends in good order."""
        if isinstance(message, say.Farewell):
            self.forget(link)
            link.closing = True
        elif isinstance(message, say.Abort):
            self._deliver(message)

    def lost_replica(self, link: Link, error: BaseException) -> None:
        """Note that the connection to another replica broke: its process died."""
        self.forget(link)
        lost = PeerLostError(f"rank {link.peer} is gone: {error}; its own output says why")
        self._deliver(say.Abort(self._step(), failure_of(lost, self._rank, None)))
