"""One host's part in measuring what the links carry: it sends to the next host and receives from the one before, at
the same time, over TCP, out of and into one buffer; prints the bytes a second that it received, after the shaper's
burst was used up.

    goodput.py OWN_ADDRESS NEXT_ADDRESS PORT SECONDS BUFFER_BYTES threads|turns

Two threads, or one that sends and receives in turns: which is faster depends on whether links or cores are the limit.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
import threading
import time
from collections.abc import Iterator

_BLOCK = 1 << 20
_SETTLE_SECONDS = 0.2
# Longer than a host may take to start: one that failed lets no other wait for it for ever.
_SILENCE_SECONDS = 30.0


def connect(address: str, port: int) -> socket.socket:
    end = time.monotonic() + 20
    while True:
        try:
            connection = socket.create_connection((address, port), 5)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


class Meter:
    """Counts what arrives, after a while, and prints the rate once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._settled = time.monotonic() + _SETTLE_SECONDS
        self._start = 0.0
        self._taken = 0
        self._printed = False

    def add(self, received: int) -> None:
        now = time.monotonic()
        if not self._start:
            self._start = now if now >= self._settled else 0.0
            return
        self._taken += received
        if not self._printed and now - self._start >= self._seconds:
            self._printed = True
            print(self._taken / (now - self._start), flush=True)


def blocks_of(buffer: bytearray) -> Iterator[memoryview]:
    view = memoryview(buffer)
    return itertools.cycle([view[at : at + _BLOCK] for at in range(0, len(buffer), _BLOCK)])


def by_threads(
    outgoing: socket.socket, incoming: socket.socket, buffer: bytearray, meter: Meter, stop: threading.Event
) -> None:
    def send() -> None:
        with outgoing, contextlib.suppress(OSError):
            for block in blocks_of(buffer):
                outgoing.sendall(block)
                if stop.is_set():
                    return

    threading.Thread(target=send, daemon=True).start()
    for block in blocks_of(buffer):
        received = incoming.recv_into(block)
        if received == 0 or stop.is_set():
            return
        meter.add(received)


def by_turns(
    outgoing: socket.socket, incoming: socket.socket, buffer: bytearray, meter: Meter, stop: threading.Event
) -> None:
    outgoing.setblocking(False)
    incoming.setblocking(False)
    sources, targets = blocks_of(buffer), blocks_of(buffer)
    while not stop.is_set():
        with contextlib.suppress(BlockingIOError):
            outgoing.send(next(sources))
        with contextlib.suppress(BlockingIOError):
            meter.add(incoming.recv_into(next(targets)))


def main() -> None:
    own, following, port, seconds, size, way = sys.argv[1:]
    socket.setdefaulttimeout(_SILENCE_SECONDS)
    with socket.create_server((own, int(port))) as server:
        outgoing = connect(following, int(port))
        incoming, _ = server.accept()
        measure = {"threads": by_threads, "turns": by_turns}[way]
        stop = threading.Event()

        def wait_for_others() -> None:
            """Until all hosts have measured: a link that falls idle would flatter the others."""
            sys.stdin.read()
            stop.set()

        threading.Thread(target=wait_for_others, daemon=True).start()
        with contextlib.suppress(ConnectionError):
            measure(outgoing, incoming, bytearray(int(size)), Meter(float(seconds)), stop)


if __name__ == "__main__":
    main()
