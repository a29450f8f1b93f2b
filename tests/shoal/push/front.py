"""What stands in front of a registry: passes every byte on, and breaks the connection when told to."""

import contextlib
import socket
import threading
from collections.abc import Callable

Breaks = Callable[[bytes], bool]


class Front:
    """A forwarder on loopback. `breaks` sees what a client sends; where it says so, the connection ends there."""

    def __init__(self, upstream_port: int, breaks: Breaks) -> None:
        self._upstream, self._breaks = ("127.0.0.1", upstream_port), breaks
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.broken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._upstream)
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(one, other, one is client), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket, to_registry: bool) -> None:
        try:
            while data := one.recv(65536):
                if to_registry and self._breaks(data):
                    self.broken += 1
                    break
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
