"""The first host's side of the control channel: it admits the others, and decides how the job ended."""

from __future__ import annotations

import time
from typing import Any

from shoal_entrypoint.configuration import Resource
from shoal_entrypoint.control.door import Door
from shoal_entrypoint.control.link import FORGED, Link
from shoal_entrypoint.control.terms import Terms
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import SUCCESS, JobError, Outcome, stopped_early
from shoal_entrypoint.supervise import Supervisor

__all__ = ["Leader"]

# How long a job that failed early waits for hosts that are still starting, to tell them.
_FAREWELL_SECONDS = 30.0
_BYE_SECONDS = 30.0
# A rank that fails because another host died may be noticed before the death: give the cause time to arrive.
_CAUSE_SECONDS = 0.5
_MOST_NAMED = 10


def named(hosts: list[str]) -> str:
    """Host names for a message that people read: of many, the first few."""
    more = len(hosts) - _MOST_NAMED
    return ", ".join(hosts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


class Leader:
    """See the package's docstring for the protocol."""

    def __init__(self, resource: Resource, supervisor: Supervisor, terms: Terms) -> None:
        self._me = resource.current_host
        self._others = [host for host in resource.hosts if host != self._me]
        self._supervisor = supervisor
        self._deadline = time.monotonic() + terms.join_seconds
        self._join_seconds = terms.join_seconds
        self._links: dict[str, Link] = {}
        self._hosts: dict[Link, str] = {}
        self._cards: dict[str, dict[str, Any]] = {}
        self._ready: set[str] = set()
        self._with_workers: set[str] = set()  # by their cards
        self._finished: set[str] = set()
        self.all_finished = False  # every host's workers have ended
        self._done: set[str] = set()
        self._gone: set[str] = set()  # said bye, or died
        self._result: Outcome | None = None
        self.tells_late_hosts = True  # that the job has failed; a check does not wait for them twice
        supervisor.on_stop = self._tell_stop
        self._door = Door(resource, supervisor, terms, self._links.__contains__, self._admit)

    def exchange(self, card: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Wait for every host's card and hand all of them to all. Can be repeated."""
        self._cards[self._me] = card
        remaining = max(0.0, self._deadline - time.monotonic())
        self._wait_for(lambda: len(self._cards) > len(self._others), remaining)
        missing = [host for host in self._others if host not in self._links]
        if missing:
            reasons = [self._door.refusals[host] for host in missing if host in self._door.refusals]
            raise JobError(
                f"{named(missing)}: did not join the job within {self._join_seconds:.0f} s of its start"
                + (f" (refused: {reasons[0]})" if reasons else "")
            )
        self._wait_for(lambda: len(self._cards) > len(self._others), None)
        cards, self._cards = self._cards, {}  # nobody sends another before these have arrived
        self._with_workers |= {host for host, one in cards.items() if one.get("workers")}
        self._broadcast("cards", cards=cards)
        return cards

    def ready(self) -> None:
        """Wait until every host can start."""
        self._wait_for(lambda: len(self._ready) == len(self._others), None)
        self._broadcast("go")

    def finish(self) -> None:
        """This host's workers have ended; see all_finished."""
        self._finish(self._me)

    def settle(self, outcome: Outcome) -> Outcome:
        """Wait for the end of every host, or of the first that fails, and announce it."""
        if outcome.failed and self._result is None:
            self._supervisor.wait(lambda: self._result is not None, timeout=_CAUSE_SECONDS)
        if outcome.failed:
            self._decide(outcome)
        self._supervisor.wait(lambda: self._result is not None or len(self._done) == len(self._others))
        self._decide(SUCCESS)
        stopped = self._supervisor.stop is not None
        missing = [host for host in self._others if host not in self._links] if self.tells_late_hosts else []
        if missing and not stopped:  # whoever stops a job stops the late hosts too
            log(f"waiting up to {_FAREWELL_SECONDS:.0f} s for {named(missing)}, to say that the job has failed")
            self._supervisor.wait(lambda: len(self._links) == len(self._others), timeout=_FAREWELL_SECONDS)
        # In a stopped job the others may still be saving their work.
        limit = max(_BYE_SECONDS, self._supervisor.stop_grace if stopped else 0.0)
        self._supervisor.wait(lambda: self._gone.issuperset(self._links), timeout=limit)
        self._door.close()
        silent = [host for host in self._others if host not in self._gone]
        if silent and not self._decided.failed:
            return Outcome(1, f"{named(silent)}: said that all was done, then did not confirm the end of the job")
        return self._decided

    def leave(self) -> None:
        """The leader has left already: it waits for every `bye` in settle."""

    @property
    def _decided(self) -> Outcome:
        return self._result or SUCCESS

    def _wait_for(self, done: Any, timeout: float | None) -> None:
        self._supervisor.wait(
            lambda: done() or self._supervisor.abort is not None or self._supervisor.stop is not None, timeout=timeout
        )
        if self._supervisor.abort is not None:
            raise JobError(self._supervisor.abort.failure or "", self._supervisor.abort.exit_code)
        if self._supervisor.stop is not None:
            raise stopped_early(self._supervisor.stop)

    def _broadcast(self, kind: str, **fields: Any) -> None:
        for link in list(self._links.values()):
            link.send(kind, **fields)

    def _decide(self, outcome: Outcome) -> None:
        """The first decision stands."""
        if self._result is None:
            self._result = outcome
            self._broadcast("result", exit_code=outcome.exit_code, failure=outcome.failure)

    def _fail(self, outcome: Outcome) -> None:
        self._decide(outcome)
        if self._supervisor.abort is None and self._decided.failed:
            self._supervisor.abort = self._decided

    def _finish(self, host: str) -> None:
        self._finished.add(host)
        if self._finished >= self._with_workers:
            self.all_finished = True
            self._broadcast("all_finished")

    def _tell_stop(self, signum: int) -> None:
        self._broadcast("stop", signal=int(signum))

    def _admit(self, link: Link, host: str) -> None:
        self._links[host] = link
        self._hosts[link] = host
        link.belong_to(self._message, self._closed)
        link.send("welcome")
        if self._result is not None:
            link.send("result", exit_code=self._result.exit_code, failure=self._result.failure)
        elif self._supervisor.stop is not None:
            link.send("stop", signal=int(self._supervisor.stop))

    def _message(self, link: Link, message: dict[str, Any]) -> None:
        host = self._hosts[link]
        kind = message["type"]
        if kind == "card":
            self._cards[host] = dict(message.get("card") or {})
        elif kind == "ready":
            self._ready.add(host)
        elif kind == "stop":
            self._supervisor.request_stop(int(message["signal"]))
        elif kind == "finished":
            self._finish(host)
        elif kind == "done":
            self._done.add(host)
            if message["exit_code"] != 0:
                self._fail(Outcome(int(message["exit_code"]), str(message["failure"])))
        elif kind == "bye":
            self._gone.add(host)
            link.close()

    def _closed(self, link: Link) -> None:
        host = self._hosts[link]
        self._gone.add(host)
        text = f"{host}: died before the job ended (its connection to {self._me} broke)"
        if link.forged:
            text = f"{host}: {FORGED}"
        if self._result is None:
            self._fail(Outcome(1, text))
        elif not self._result.failed:
            self._result = Outcome(1, text)
