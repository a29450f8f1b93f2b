"""A port for sshd: chosen before the hosts tell each other theirs, used when keys and code are there.

In between, a socket that is bound but does not listen keeps it: no other program gets the port, and sshd still does,
because both sockets allow the reuse of an address on which nobody listens.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from typing import Mapping

from shoal_entrypoint.outcome import JobError

__all__ = ["SSH_PORT", "Held", "for_ssh"]

SSH_PORT = 22
_NAME = "SHOAL_SSH_PORT"
_LARGEST = 65535
_ATTEMPTS = 100


class Held:
    """A port that is kept until release()."""

    def __init__(self, port: int) -> None:
        self._sockets: list[socket.socket] = []
        self.port = port
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                self._bind(family)
        except OSError:
            self.release()
            raise

    def _bind(self, family: socket.AddressFamily) -> None:
        try:
            one = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            if family == socket.AF_INET6:
                return  # switched off
            raise
        self._sockets.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            one.bind(("", self.port))
        except OSError as error:
            if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL:
                return  # compiled in, and switched off
            raise
        self.port = one.getsockname()[1]

    def release(self) -> None:
        """Let it go: sshd has it now."""
        for one in self._sockets:
            one.close()
        self._sockets.clear()


def for_ssh(environ: Mapping[str, str]) -> Held:
    """The port that SHOAL_SSH_PORT names; else 22, or any free one where that is taken or not allowed."""
    text = environ.get(_NAME)
    if text:
        if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) <= _LARGEST:
            raise JobError(f"{_NAME}: a port from 1 to {_LARGEST} was expected, not {text!r}")
        try:
            return Held(int(text))
        except OSError as error:
            raise JobError(
                f"{_NAME}: port {text} cannot be used on this host: {os.strerror(error.errno or 0)}."
                " Name another one, or none: then every host takes one that is free."
            ) from None
    for port in (SSH_PORT, *[0] * _ATTEMPTS):
        try:
            return Held(port)
        except OSError:
            continue  # or the free one was taken in the other family
    raise JobError(f"sshd: no port is free on this host ({_ATTEMPTS} attempts)")
