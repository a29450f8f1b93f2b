"""The hosts of one job, talking to each other: who is there, who is ready, who failed, how it all ended.

Protocol (one JSON object a line, TCP, leader = first of `hosts`, port 7593 or SHOAL_CONTROL_PORT):

    worker -> leader   hello  {host}                 once, first; refused unless `host` is one of the job's hosts, is
                                                     not connected yet, and its name resolves to the peer's address
                                                     (not checked where the scheduler tells no names)
    leader -> worker   welcome
    worker -> leader   card   {card}                 public keys and the like
    leader -> worker   cards  {cards: {host: card}}  when every host has sent its card; repeatable
    worker -> leader   ready                         code is there, sshd listens
    leader -> worker   go                            when every host is ready
    either -> either   stop   {signal}               a host got SIGTERM or SIGINT; the leader passes it to all
    worker -> leader   done   {exit_code, failure}   this host's own part has ended
    leader -> worker   result {exit_code, failure}   the first failure, or 0 when every host is done
    worker -> leader   bye                           result written; the leader leaves last
    leader -> worker   refused {reason, retry}

A connection that ends before its `bye` is a death: the job fails at once. Kernel keep-alives find hosts that vanish
without closing (about 15 s). Only public keys travel. Whoever can open connections from a job host's own address is
trusted, as Open MPI and torch.distributed trust it; the job's network must be private.
"""

from __future__ import annotations

import os
from typing import Any, Mapping

from shoal_entrypoint.configuration import Resource, number
from shoal_entrypoint.control.leader import Leader
from shoal_entrypoint.control.worker import Worker
from shoal_entrypoint.outcome import Outcome
from shoal_entrypoint.supervise import Supervisor

__all__ = ["Alone", "join"]

DEFAULT_PORT = 7593
DEFAULT_JOIN_SECONDS = 900.0


class Alone:
    """The channel of a job with one host."""

    def __init__(self, host: str) -> None:
        self._host = host

    def exchange(self, card: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Only this host's own card."""
        return {self._host: card}

    def ready(self) -> None:
        """Nobody to wait for."""

    def settle(self, outcome: Outcome) -> Outcome:
        """This host's end is the job's."""
        return outcome

    def leave(self) -> None:
        """Nobody is waiting."""


def join(
    resource: Resource, supervisor: Supervisor, environ: Mapping[str, str] = os.environ
) -> Alone | Leader | Worker:
    """Meet the other hosts of the job."""
    if len(resource.hosts) == 1:
        return Alone(resource.current_host)
    port = int(number(environ, "SHOAL_CONTROL_PORT", DEFAULT_PORT))
    seconds = number(environ, "SHOAL_JOIN_TIMEOUT", DEFAULT_JOIN_SECONDS)
    host_side = Leader if resource.current_host == resource.hosts[0] else Worker
    return host_side(resource, supervisor, port, seconds)
