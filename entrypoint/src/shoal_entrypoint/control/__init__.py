"""The hosts of one job, talking to each other: who is there, who is ready, who failed, how it all ended.

Protocol (one JSON object a line, TCP, leader = first of `hosts`, port 7593 or SHOAL_CONTROL_PORT):

    worker -> leader   hello  {host, nonce?}         once, first; refused unless `host` is one of the job's hosts, is
                                                     not connected yet, and, without a secret, its name resolves to
                                                     the peer's address (not where the scheduler tells no names)
    leader -> worker   challenge {nonce}             with a secret only; every line after it is signed
    worker -> leader   answer                        its signature proves the secret, that of `welcome` the leader's
    leader -> worker   welcome
    worker -> leader   card   {card}                 public keys and the like
    leader -> worker   cards  {cards: {host: card}}  when every host has sent its card; repeatable
    worker -> leader   ready                         code is there, sshd listens
    leader -> worker   go                            when every host is ready
    worker -> leader   finished                      jobs with parameter servers: this host's workers have ended
    leader -> worker   all_finished                  every host's workers have ended: servers may end
    either -> either   stop   {signal}               a host got SIGTERM or SIGINT; the leader passes it to all
    worker -> leader   done   {exit_code, failure}   this host's own part has ended
    leader -> worker   result {exit_code, failure}   the first failure, or 0 when every host is done
    worker -> leader   bye                           result written; the leader leaves last
    leader -> worker   refused {reason, retry}

A connection that ends before its `bye` is a death: the job fails at once. Kernel keep-alives find hosts that vanish
without closing (SHOAL_HOST_TIMEOUT). Only public keys travel.

With a secret (SHOAL_JOB_SECRET, SHOAL_JOB_SECRET_FILE), which itself never travels, both sides make two keys,

    key(role) = HMAC-SHA256(secret, lines: "shoal control 1", role, host, worker's nonce, leader's nonce)

for role "leader" and "worker", and each line that a role sends after `challenge` is

    hex(HMAC-SHA256(key(role), number of the line from 0, 8 bytes, big-endian || line)) " " line

so that without the secret nobody can make up, change, repeat or leave out a line, send it back, or carry it to another
connection; a line that fails ends the connection. Nothing is encrypted: nothing here is confidential.
A secret on one side only, or another one, is refused; the leader waits on for the right host.

Without a secret, whoever can open connections from a job host's own address is trusted, as Open MPI and
torch.distributed trust it; the job's network must be private.
"""

from __future__ import annotations

import os
from typing import Any, Mapping

from shoal_entrypoint.configuration import Resource
from shoal_entrypoint.control.leader import Leader
from shoal_entrypoint.control.terms import Terms
from shoal_entrypoint.control.worker import Worker
from shoal_entrypoint.outcome import Outcome
from shoal_entrypoint.supervise import Supervisor

__all__ = ["Alone", "join"]


class Alone:
    """The channel of a job with one host."""

    def __init__(self, host: str) -> None:
        self._host = host

    def exchange(self, card: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Only this host's own card."""
        return {self._host: card}

    def ready(self) -> None:
        """Nobody to wait for."""

    @property
    def all_finished(self) -> bool:
        """Whoever asks has finished."""
        return True

    def finish(self) -> None:
        """Nobody to tell."""

    def settle(self, outcome: Outcome) -> Outcome:
        """This host's end is the job's."""
        return outcome

    def leave(self) -> None:
        """Nobody is waiting."""


def join(
    resource: Resource, supervisor: Supervisor, environ: Mapping[str, str] = os.environ
) -> Alone | Leader | Worker:
    """Meet the other hosts of the job."""
    terms = Terms.from_environment(environ)
    if len(resource.hosts) == 1:
        return Alone(resource.current_host)
    host_side = Leader if resource.current_host == resource.hosts[0] else Worker
    return host_side(resource, supervisor, terms)
