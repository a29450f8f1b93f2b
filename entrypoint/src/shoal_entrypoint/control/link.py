"""One connection between two hosts: JSON lines over TCP, with keep-alives, signed if asked for.

It knows nothing of what they mean.
"""

from __future__ import annotations

import json
import socket
from typing import Any, Callable

from shoal_entrypoint.control.secret import Session
from shoal_entrypoint.supervise import Supervisor

__all__ = ["FORGED", "Link"]

FORGED = "a line between the hosts was changed, inserted or lost on its way: somebody else is on the job's network"

_LINE_LIMIT = 4 * 1024 * 1024
_SEND_SECONDS = 10.0
_PROBES = 3


class Link:
    """Calls `on_message` for each object that arrives and `on_close` once, when the other side is gone."""

    def __init__(
        self,
        supervisor: Supervisor,
        connection: socket.socket,
        on_message: Callable[[Link, dict[str, Any]], None],
        on_close: Callable[[Link], None],
        host_seconds: float,
        line_limit: int = _LINE_LIMIT,
    ) -> None:
        self._supervisor = supervisor
        self._socket = connection
        self._on_message = on_message
        self._on_close = on_close
        self._line_limit = line_limit
        self._buffer = b""
        self.session: Session | None = None  # once set, every line in both directions is signed
        self.forged = False  # closed because of a line that the other side has not signed
        self.closed = False
        self.peer = str(connection.getpeername()[0])
        if self.peer.startswith("::ffff:"):
            self.peer = self.peer[len("::ffff:") :]
        connection.settimeout(_SEND_SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that vanishes without a word: two fifths of the time silent, then three probes in the rest of it.
        every = max(1, int(host_seconds / 5))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(host_seconds - _PROBES * every)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(host_seconds * 1000))
        supervisor.watch(connection, self._readable)

    def belong_to(self, on_message: Callable[[Link, dict[str, Any]], None], on_close: Callable[[Link], None]) -> None:
        """Hand over a connection that has been admitted: other callbacks, and room for long lines."""
        self._on_message, self._on_close, self._line_limit = on_message, on_close, _LINE_LIMIT

    def send(self, kind: str, **fields: Any) -> None:
        """Send one message; a connection that cannot take it counts as closed."""
        if self.closed:
            return
        line = json.dumps({"type": kind, **fields}).encode()
        if self.session is not None:
            line = self.session.sign(line)
        try:
            self._socket.sendall(line + b"\n")
        except OSError:
            self._lost()

    def close(self) -> None:
        """End the connection from this side; no callback follows."""
        if not self.closed:
            self.closed = True
            self._supervisor.unwatch(self._socket)
            self._socket.close()

    def _lost(self) -> None:
        if not self.closed:
            self.close()
            self._on_close(self)

    def _readable(self) -> None:
        if self.closed:
            return
        try:
            data = self._socket.recv(64 * 1024, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._buffer) > self._line_limit:
            self._lost()

    def _line(self, line: bytes) -> None:
        if self.closed:  # by what the line before it led to
            return
        if self.session is not None:
            verified = self.session.verify(line)
            if verified is None:
                self.forged = True
                # The other side cannot verify this line either, and learns from that what is wrong.
                self.send("refused", reason=FORGED, retry=False)
                self._lost()
                return
            line = verified
        try:
            message = json.loads(line) if len(line) <= self._line_limit else None
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict) and isinstance(message.get("type"), str):
            self._on_message(self, message)
        else:
            self._lost()  # not one of ours
