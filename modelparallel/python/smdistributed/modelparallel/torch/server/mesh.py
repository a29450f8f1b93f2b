"""Connections to the ranks that run parts of the same model: a Unix socket in one host, TCP between hosts.

Every rank tells all where it listens; of two ranks the higher connects to the lower. The messages are pickles, so a
connection begins with a secret that only the ranks of the job know.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
from pathlib import Path
from typing import Iterable, NamedTuple, Sequence

_HELLO = struct.Struct("<16sI")


class Address(NamedTuple):
    """Where a rank listens. `machine`: equal on two ranks that can reach one another's abstract Unix sockets."""

    machine: str
    unix: str
    host: str
    port: int
    secret: bytes


def _machine() -> str:
    try:
        space = Path("/proc/self/ns/net").stat().st_ino
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        space, boot = 0, ""
    return f"{socket.gethostname()}/{boot}/{space}"


def _host_address(towards: str) -> str:
    """Return this host's address as seen by the others: that of the interface which leads to `towards`."""
    candidates = [towards, "192.0.2.1"]  # the second is of a net kept for documentation: it finds the default route
    found = "127.0.0.1"
    for candidate in candidates:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((candidate, 9))  # no packet is sent
            found = str(probe.getsockname()[0])
            if candidate in ("127.0.0.1", "localhost") or not found.startswith("127."):
                return found
    return found


class Mesh:
    """The listening end of a rank and what connecting to others needs.

    Args:
        rank: this one, global.
        master_addr: of a host that all ranks can reach.

    Attributes:
        address: what the other ranks must be told.
    """

    def __init__(self, rank: int, master_addr: str) -> None:
        self._rank = rank
        self._secret = secrets.token_bytes(16)
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"\0shoal-smp-{os.getpid()}-{secrets.token_hex(8)}"
        self._unix.bind(name)
        self._tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        host = _host_address(master_addr)
        self._tcp.bind((host, 0))
        for listener in (self._unix, self._tcp):
            listener.listen(1024)
        self.address = Address(_machine(), name, host, self._tcp.getsockname()[1], self._secret)

    def connect(
        self, peers: Iterable[int], addresses: Sequence[Address], timeout_seconds: float
    ) -> dict[int, socket.socket]:
        """Return a connected socket for each global rank of `peers`; they must call this with us among theirs.

        Args:
            peers: global ranks.
            addresses: of all ranks, in their order.
            timeout_seconds: how long to wait for one peer.

        Raises:
            OSError: a peer cannot be reached, or does not come.
        """
        peers = set(peers) - {self._rank}
        links = {peer: self._dial(addresses[peer], timeout_seconds) for peer in sorted(peers) if peer < self._rank}
        missing = peers - set(links)
        local = {peer for peer in missing if addresses[peer].machine == self.address.machine}
        for listener, expected in ((self._unix, local), (self._tcp, missing - local)):
            listener.settimeout(timeout_seconds)
            while not expected <= set(links):
                peer, sock = self._accept(listener)
                if peer in expected and peer not in links:
                    links[peer] = sock
                else:
                    sock.close()
        self._unix.close()
        self._tcp.close()
        return links

    def _dial(self, address: Address, timeout_seconds: float) -> socket.socket:
        if address.machine == self.address.machine:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(timeout_seconds)
            sock.connect(address.unix)
        else:
            sock = socket.create_connection((address.host, address.port), timeout=timeout_seconds)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(_HELLO.pack(address.secret, self._rank))
        sock.settimeout(None)
        return sock

    def _accept(self, listener: socket.socket) -> tuple[int, socket.socket]:
        sock, _ = listener.accept()
        sock.settimeout(10)
        hello = b""
        with contextlib.suppress(OSError):
            while len(hello) < _HELLO.size:
                more = sock.recv(_HELLO.size - len(hello))
                if not more:
                    break
                hello += more
        sock.settimeout(None)
        if len(hello) < _HELLO.size:
            return -1, sock
        secret, peer = _HELLO.unpack(hello)
        if not hmac.compare_digest(secret, self._secret):
            return -1, sock
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer, sock
