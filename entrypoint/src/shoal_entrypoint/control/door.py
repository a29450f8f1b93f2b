"""Who gets in at the leader. A stranger can neither block it, nor make it fail, nor make it grow: connections that have
not proved who they are, their number, their time, the length of their lines and what is logged of them are bounded.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Callable

from shoal_entrypoint import network
from shoal_entrypoint.configuration import Resource
from shoal_entrypoint.control import secret as secrets
from shoal_entrypoint.control.link import Link
from shoal_entrypoint.control.terms import Terms
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.supervise import Supervisor

__all__ = ["Door"]

# Connections that have not said who they are, beyond one for each host: a bound for strangers.
_STRANGERS = 64
_HELLO_SECONDS = 10.0
_LONGEST_HELLO = 4096
_MOST_LOGGED = 20
_USUAL_FILES = 1024
_OTHER_FILES = 100
_LONGEST_NAME = 253
# A name that does not resolve can take the resolver seconds, in which nothing else happens here.
_LOOKUP_SECONDS = 1.0


class Door:
    """Listens; calls `admit(link, host)` for each host that has shown that it belongs to the job."""

    def __init__(
        self,
        resource: Resource,
        supervisor: Supervisor,
        terms: Terms,
        joined: Callable[[str], bool],
        admit: Callable[[Link, str], None],
    ) -> None:
        self._me = resource.current_host
        self._others = {host for host in resource.hosts if host != self._me}
        self._anonymous = resource.anonymous
        self._supervisor = supervisor
        self._secret = terms.secret
        self._host_seconds = terms.host_seconds
        self._joined = joined
        self._admit = admit
        self._strangers: dict[Link, float] = {}
        self._claims: dict[Link, str] = {}
        self._addresses: dict[str, tuple[float, list[str]]] = {}
        self._logged: set[str] = set()
        self.refusals: dict[str, str] = {}  # by the host that the refused one said to be
        _make_room(len(self._others))
        self._listener = _listen(terms.port)
        supervisor.watch(self._listener, self._accept)

    def close(self) -> None:
        """Let nobody in any more."""
        self._supervisor.unwatch(self._listener)
        self._listener.close()
        for link in list(self._strangers):
            self._forget(link)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        now = time.monotonic()
        for link in [link for link, since in self._strangers.items() if now - since > _HELLO_SECONDS]:
            self._forget(link)
        if len(self._strangers) >= _STRANGERS + len(self._others):
            # The oldest: a host of the job is through in no time, whoever only holds a place is not.
            self._forget(next(iter(self._strangers)))
        try:
            link = Link(self._supervisor, connection, self._message, self._closed, self._host_seconds, _LONGEST_HELLO)
        except OSError:
            connection.close()  # gone before it was looked at
            return
        self._strangers[link] = now

    def _forget(self, link: Link) -> None:
        self._strangers.pop(link, None)
        self._claims.pop(link, None)
        link.close()

    def _message(self, link: Link, message: dict[str, Any]) -> None:
        claim = self._claims.get(link)
        if message["type"] == "hello" and claim is None:
            self._hello(link, str(message.get("host")), secrets.read_nonce(message))
        elif message["type"] == "answer" and claim is not None:
            self._enter(link, claim)  # only who knows the secret can have signed this line
        else:
            self._forget(link)

    def _closed(self, link: Link) -> None:
        claim = self._claims.get(link)
        if link.forged and claim is not None:
            self._note(claim, f"{claim} at {link.peer} has another secret than {self._me}: {secrets.SAME_EVERYWHERE}")
        self._forget(link)

    def _hello(self, link: Link, host: str, nonce: str | None) -> None:
        if host not in self._others:
            shown = host if host.isprintable() and len(host) <= _LONGEST_NAME else ascii(host[:_LONGEST_NAME])
            self._refuse(link, host, f"{shown} is not one of this job's hosts")
        elif (nonce is None) != (self._secret is None):
            has, lacks = (host, self._me) if nonce else (self._me, host)
            self._refuse(link, host, f"{has} has a secret for this job, {lacks} has none: {secrets.SAME_EVERYWHERE}")
        elif self._secret is None or nonce is None:
            self._enter(link, host)
        else:
            self._claims[link] = host
            mine = secrets.new_nonce()
            link.send("challenge", nonce=mine)
            link.session = secrets.Session(self._secret, secrets.LEADER, host, nonce, mine)

    def _enter(self, link: Link, host: str) -> None:
        if self._joined(host):
            self._refuse(link, host, f"{host} has joined already")
        elif self._secret is None and not self._anonymous and link.peer not in self._known(host):
            known = ", ".join(self._known(host)) or "the name does not resolve"
            self._refuse(link, host, f"{link.peer} is not an address of {host} here ({known})", retry=True)
        else:
            self._strangers.pop(link, None)
            self._claims.pop(link, None)
            self._admit(link, host)

    def _known(self, host: str) -> list[str]:
        now = time.monotonic()
        since, known = self._addresses.get(host, (0.0, []))
        if now - since > _LOOKUP_SECONDS:
            known = network.addresses(host)
            self._addresses[host] = (time.monotonic(), known)
        return known

    def _refuse(self, link: Link, host: str, reason: str, retry: bool = False) -> None:
        self._note(host, reason)
        link.send("refused", reason=reason, retry=retry)
        self._forget(link)

    def _note(self, host: str, reason: str) -> None:
        if host in self._others and not self._joined(host):
            self.refusals[host] = reason
        if reason not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(reason)
            log(f"refused a connection: {reason}")


def _make_room(hosts: int) -> None:
    """Each host is an open file here, and the usual bound is 1024."""
    needed = hosts + _STRANGERS + hosts + _OTHER_FILES
    if needed <= _USUAL_FILES:
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise JobError(
                f"a job of {hosts + 1} hosts needs {needed} open files on its first host, and {hard} are allowed here:"
                " raise the limit (ulimit -Hn, docker run --ulimit nofile=)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _listen(port: int) -> socket.socket:
    errors: list[str] = []
    for family, dual in ((socket.AF_INET6, True), (socket.AF_INET, False)):
        if dual and not socket.has_dualstack_ipv6():
            continue
        try:
            listener = socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=dual)
        except OSError as error:  # IPv6 switched off in this container, or the port is taken
            errors.append(str(error))
            continue
        listener.setblocking(False)
        return listener
    raise JobError(f"control port {port}: {errors[-1]}. SHOAL_CONTROL_PORT sets another one, the same on every host.")
