"""A connection to one other rank: messages with tensors, in order, both ways.

A frame is: length of the head (8 bytes, little endian), the head (the message and each tensor's form: wire.py), then
every tensor's bytes. A tensor is dense: its bytes are sent in the order they lie in memory, so that the receiver's
copy has the same strides (a channels-last image stays one, and kernels choose alike on both ranks).
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from typing import Any, Callable

import torch

from .. import marks
from . import wire
from .incoming import LENGTH, Incoming

# Up to this many bytes the calling thread sends by itself: a hand-over to the writer would cost more than the copy.
_INLINE_BYTES = 1 << 20
_SOCKET_BUFFER_BYTES = 4 << 20

Received = Callable[["Link", Any, "list[tuple[torch.Tensor, bool]]"], None]


class Link:
    """A connection over a stream socket. Whoever reads for this rank calls `receive` when something has come.

    Args:
        sock: connected.
        peer: names the other end.
        device: where received tensors go.
        received: called for each message.
        lost: called once if the connection ends before `close`.

    Attributes:
        ended: set when nothing more will come.
    """

    def __init__(self, sock: socket.socket, peer: int, device: torch.device, received: Received, lost: Lost) -> None:
        self.peer = peer
        self.ended = threading.Event()
        self.closing = False
        self._socket = sock
        self._incoming = Incoming(sock, device)
        self._received = received
        self._lost = lost
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[list[memoryview], list[torch.Tensor]] | None] = queue.SimpleQueue()
        self._queued = 0
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        self._writer = threading.Thread(target=self._write, name=f"smp-write-{peer}", daemon=True)
        self._writer.start()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def send(self, message: Any, tensors: list[torch.Tensor], snapshot: bool = False) -> None:
        """Send a picklable message and tensors; what is large is sent by the writer thread after this returns.

        Args:
            message: any picklable object without tensors.
            tensors: on any device, of any dtype; `requires_grad` travels along.
            snapshot: the caller may change the tensors in place as soon as this returns.

        Raises:
            OSError: the connection is gone.
        """
        flats: list[torch.Tensor] = []
        forms: list[wire.Form] = []
        for tensor in tensors:
            flat, form = wire.dense(tensor)
            flats.append(flat)
            forms.append(form)
        head = wire.encode(message, forms)
        size = sum(flat.numel() * flat.element_size() for flat in flats)
        if size and marks.counters is not None:
            marks.counters.add("pipeline", 1, size)
        with self._lock:
            inline = self._queued == 0 and size <= _INLINE_BYTES
            if snapshot and not inline:
                flats = [flat.clone() for flat in flats]
            parts = [memoryview(LENGTH.pack(len(head)) + head), *(wire.bytes_of(flat) for flat in flats)]
            parts = [part for part in parts if part.nbytes]
            if inline:
                # The peer may not be reading just now: what it has no room for yet must not hold up this thread. It is
                # copied, for a module may change what it returned when it runs next.
                parts = [memoryview(bytes(part)) for part in self._send_some(parts, socket.MSG_DONTWAIT)]
            if parts:
                self._queued += 1
                self._queue.put((parts, flats))

    def receive(self) -> bool:
        """Hand on what has come, without waiting for more; return whether more may come.

        At most one thread at a time may be in here.
        """
        try:
            while True:
                whole = self._incoming.next()
                if whole is not None:
                    self._received(self, *whole)
                    del whole
                if not self._incoming.pending:
                    return True
        # What a message cannot be read or handed on for is told as the end of the connection: nothing after it can be
        # trusted, and the thread that reads may be one that waits in the user's own code.
        except Exception as error:
            self.ended.set()
            if not self.closing:
                self._lost(self, error)
            return False

    def close(self) -> None:
        """Send what is queued, then close; the peer finds the end of the stream."""
        self.closing = True
        self._queue.put(None)
        self._writer.join(timeout=5)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.ended.set()

    def _send_some(self, parts: list[memoryview], flags: int = 0) -> list[memoryview]:
        """Send all of it, or with MSG_DONTWAIT what there is room for; return what is left."""
        while parts:
            try:
                sent = self._socket.sendmsg(parts[:64], (), flags)
            except BlockingIOError:
                break
            while parts and sent >= parts[0].nbytes:
                sent -= parts.pop(0).nbytes
            if sent:
                parts[0] = parts[0][sent:]
        return parts

    def _write(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            try:
                self._send_some(item[0])
            except OSError as error:
                self._lost(self, error)
                return
            finally:
                del item  # else the last tensors sent would live until the next are
                with self._lock:
                    self._queued -= 1


Lost = Callable[[Link, BaseException], None]
