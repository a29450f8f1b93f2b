"""The other hosts' side of the control channel: join, report, and end as the leader says."""

from __future__ import annotations

import functools
import socket
import time
from typing import Any, Callable

from shoal_entrypoint.configuration import Resource
from shoal_entrypoint.control import secret as secrets
from shoal_entrypoint.control.link import FORGED, Link
from shoal_entrypoint.control.terms import Terms
from shoal_entrypoint.outcome import JobError, Outcome, stopped_early
from shoal_entrypoint.supervise import Supervisor

__all__ = ["Worker"]

_CONNECT_SECONDS = 2.0
_HELLO_SECONDS = 10.0
_RETRY_SECONDS = 0.2


class Worker:
    """See the package's docstring for the protocol."""

    def __init__(self, resource: Resource, supervisor: Supervisor, terms: Terms) -> None:
        self._me = resource.current_host
        self._leader = resource.hosts[0]
        self._supervisor = supervisor
        self._port = terms.port
        self._join_seconds = terms.join_seconds
        self._secret = terms.secret
        self._host_seconds = terms.host_seconds
        self._nonce: str | None = None
        self._cards: dict[str, dict[str, Any]] | None = None
        self._welcome = False
        self._go = False
        self.all_finished = False  # every host's workers have ended
        self._result: Outcome | None = None
        self._refusal: dict[str, Any] | None = None
        self._deadline = time.monotonic() + terms.join_seconds
        self._link = self._connect("no attempt was made")
        supervisor.on_stop = self._tell_stop

    def exchange(self, card: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Send this host's card, wait for all. Can be repeated."""
        self._cards = None
        self._link.send("card", card=card)
        self._wait_for(lambda: self._cards is not None)
        return self._cards or {}

    def ready(self) -> None:
        """Tell the leader, wait for everybody."""
        self._link.send("ready")
        self._wait_for(lambda: self._go)

    def finish(self) -> None:
        """This host's workers have ended; see all_finished."""
        self._link.send("finished")

    def settle(self, outcome: Outcome) -> Outcome:
        """Report this host's end and take the job's."""
        self._link.send("done", exit_code=outcome.exit_code, failure=outcome.failure)
        self._supervisor.wait(lambda: self._result is not None)
        result = self._result or outcome
        # A leader that died cannot take back what this host knows about itself.
        return outcome if outcome.failed and self._link.closed else result

    def leave(self) -> None:
        """The result is written: the leader need not wait any longer."""
        self._link.send("bye")
        self._link.close()

    def _connect(self, reason: str) -> Link:
        while time.monotonic() < self._deadline:
            try:
                connection = socket.create_connection((self._leader, self._port), timeout=_CONNECT_SECONDS)
            except OSError as error:  # not up yet, or its name does not resolve yet
                reason = str(error)
                self._pause()
                continue
            self._refusal = None
            link = Link(self._supervisor, connection, self._message, self._closed, self._host_seconds)
            self._nonce = None if self._secret is None else secrets.new_nonce()
            link.send("hello", host=self._me, **({} if self._nonce is None else {"nonce": self._nonce}))
            self._supervisor.wait(functools.partial(self._answered, link), timeout=_HELLO_SECONDS)
            if self._welcome:
                return link
            refusal = self._refusal or {"reason": "no answer to hello", "retry": True}
            if link.forged:
                reason = f"{self._leader} has another secret than {self._me}: {secrets.SAME_EVERYWHERE}"
                refusal = {"reason": reason, "retry": False}
            reason = str(refusal.get("reason"))
            link.close()
            if not refusal.get("retry"):
                break
            self._pause()
        raise JobError(
            f"{self._leader}:{self._port}: {self._me} could not join the job"
            f" (waited up to {self._join_seconds:.0f} s): {reason}"
        )

    def _answered(self, link: Link) -> bool:
        return self._welcome or link.closed or self._refusal is not None

    def _pause(self) -> None:
        self._supervisor.wait(lambda: self._supervisor.stop is not None, timeout=_RETRY_SECONDS)
        if self._supervisor.stop is not None:
            raise stopped_early(self._supervisor.stop)

    def _wait_for(self, done: Callable[[], bool]) -> None:
        self._supervisor.wait(lambda: done() or self._supervisor.abort is not None or self._supervisor.stop is not None)
        if self._supervisor.abort is not None:
            raise JobError(self._supervisor.abort.failure or "", self._supervisor.abort.exit_code)
        if self._supervisor.stop is not None:
            raise stopped_early(self._supervisor.stop)

    def _tell_stop(self, signum: int) -> None:
        self._link.send("stop", signal=int(signum))

    def _challenged(self, link: Link, nonce: str | None) -> None:
        if self._secret is not None and self._nonce is not None and nonce is not None and link.session is None:
            link.session = secrets.Session(self._secret, secrets.WORKER, self._me, self._nonce, nonce)
            link.send("answer")

    def _message(self, link: Link, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "challenge":
            self._challenged(link, secrets.read_nonce(message))
        elif kind == "refused":
            self._refusal = message
        elif self._secret is not None and link.session is None:
            reason = f"{self._leader} did not ask for this job's secret: {secrets.SAME_EVERYWHERE}"
            self._refusal = {"reason": reason, "retry": False}
        elif kind == "welcome":
            self._welcome = True
        elif kind == "cards":
            self._cards = dict(message["cards"])
        elif kind == "go":
            self._go = True
        elif kind == "all_finished":
            self.all_finished = True
        elif kind == "stop":
            self._supervisor.request_stop(int(message["signal"]))
        elif kind == "result":
            self._take(Outcome(int(message["exit_code"]), message["failure"]))

    def _closed(self, link: Link) -> None:
        if self._welcome:
            text = f"{self._leader}: died before the job ended (its connection to {self._me} broke)"
            if link.forged:
                text = f"{self._leader}: {FORGED}"
            self._take(Outcome(1, text))

    def _take(self, outcome: Outcome) -> None:
        if self._result is None:
            self._result = outcome
            if outcome.failed:
                self._supervisor.abort = outcome
