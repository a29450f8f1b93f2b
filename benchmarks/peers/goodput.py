"""One host's part in measuring what the links carry: it sends to the next host and receives from the one before, at the
same time, over TCP; prints the bytes a second that it received, after the shaper's burst was used up.

    goodput.py OWN_ADDRESS NEXT_ADDRESS PORT SECONDS
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

_BLOCK = 1 << 20
_SETTLE_SECONDS = 0.2


def send(address: str, port: int, stop: threading.Event) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            connection = socket.create_connection((address, port), 5)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    block = bytes(_BLOCK)
    with connection, contextlib.suppress(OSError):
        while not stop.is_set():
            connection.sendall(block)


def receive(connection: socket.socket, seconds: float) -> float:
    """Bytes a second."""
    buffer = bytearray(_BLOCK)
    connection.recv_into(buffer)
    settled = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < settled:
        connection.recv_into(buffer)
    start, taken = time.monotonic(), 0
    while (passed := time.monotonic() - start) < seconds:
        taken += connection.recv_into(buffer)
    return taken / passed


def main() -> None:
    own, following, port, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    stop = threading.Event()
    with socket.create_server((own, port)) as server:
        sender = threading.Thread(target=send, args=(following, port, stop))
        sender.start()
        connection, _ = server.accept()
        rate = receive(connection, seconds)
        print(rate, flush=True)
        sys.stdin.read()  # Until all hosts have measured: a link that falls idle would flatter the others.
        stop.set()
        connection.close()
        sender.join()


if __name__ == "__main__":
    main()
