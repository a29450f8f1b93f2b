"""One connection between two hosts: JSON lines over TCP, with keep-alives. It knows nothing of what they mean."""

from __future__ import annotations

import json
import socket
from typing import Any, Callable

from shoal_entrypoint.supervise import Supervisor

__all__ = ["Link"]

_LINE_LIMIT = 4 * 1024 * 1024
_SEND_SECONDS = 10.0
# A host that vanishes without a word is found after idle + count x interval = 14 s.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3))
_USER_TIMEOUT_MS = 14_000


class Link:
    """Calls `on_message` for each object that arrives and `on_close` once, when the other side is gone."""

    def __init__(
        self,
        supervisor: Supervisor,
        connection: socket.socket,
        on_message: Callable[[Link, dict[str, Any]], None],
        on_close: Callable[[Link], None],
    ) -> None:
        self._supervisor = supervisor
        self._socket = connection
        self._on_message = on_message
        self._on_close = on_close
        self._buffer = b""
        self.closed = False
        self.peer = str(connection.getpeername()[0])
        if self.peer.startswith("::ffff:"):
            self.peer = self.peer[len("::ffff:") :]
        connection.settimeout(_SEND_SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        supervisor.watch(connection, self._readable)

    def send(self, kind: str, **fields: Any) -> None:
        """Send one message; a connection that cannot take it counts as closed."""
        if self.closed:
            return
        try:
            self._socket.sendall(json.dumps({"type": kind, **fields}).encode() + b"\n")
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
        if len(self._buffer) > _LINE_LIMIT:
            self._lost()

    def _line(self, line: bytes) -> None:
        if self.closed:  # by what the line before it led to
            return
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if isinstance(message, dict) and isinstance(message.get("type"), str):
            self._on_message(self, message)
        else:
            self._lost()  # not one of ours
