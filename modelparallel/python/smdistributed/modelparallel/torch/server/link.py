"""A connection to one other rank: messages with tensors, in order, both ways.

A frame is: length of the head (8 bytes, little endian), the head (a pickle of the message and of each tensor's form),
then every tensor's bytes. A tensor is dense: its bytes are sent in the order they lie in memory, so that the receiver's
copy has the same strides (a channels-last image stays one, and kernels choose alike on both ranks).
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import queue
import socket
import struct
import threading
from typing import Any, Callable, NamedTuple

import torch

from .. import marks

_LENGTH = struct.Struct("<Q")
# Up to this many bytes the calling thread sends by itself: a hand-over to the writer would cost more than the copy.
_INLINE_BYTES = 1 << 20
_SOCKET_BUFFER_BYTES = 4 << 20


class Form(NamedTuple):
    """What a tensor's bytes mean: `order` lists its dimensions from the slowest to the fastest in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    requires_grad: bool


Received = Callable[["Link", Any, "list[tuple[torch.Tensor, bool]]"], None]


def _dense(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    # A gradient may be sparse, and a tensor may be the conjugate or the negative of what its memory holds.
    tensor = (tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()).resolve_conj()
    tensor = tensor.resolve_neg()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.is_contiguous():
        return tensor, None
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda d: (-strides[d], d)))
    permuted = tensor.permute(order)
    if permuted.is_contiguous():
        return permuted, order
    return tensor.contiguous(), None


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor; it is valid as long as the tensor lives."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


class Link:
    """A connection over a stream socket; a reader thread calls `received` for each message, `lost` at its end."""

    def __init__(self, sock: socket.socket, peer: int, device: torch.device, received: Received, lost: Lost) -> None:
        self.peer = peer
        self._socket = sock
        self._device = device
        self._received = received
        self._lost = lost
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[list[memoryview], list[torch.Tensor]] | None] = queue.SimpleQueue()
        self._queued = 0
        self.closing = False
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        self._threads = [
            threading.Thread(target=self._read, name=f"smp-read-{peer}", daemon=True),
            threading.Thread(target=self._write, name=f"smp-write-{peer}", daemon=True),
        ]

    def start(self) -> None:
        """Begin to receive."""
        for thread in self._threads:
            thread.start()

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
        forms: list[Form] = []
        for tensor in tensors:
            flat, order = _dense(tensor)
            flats.append(flat)
            forms.append(Form(tensor.dtype, tuple(flat.shape), order, tensor.requires_grad))
        head = pickle.dumps((message, forms), protocol=pickle.HIGHEST_PROTOCOL)
        size = sum(flat.numel() * flat.element_size() for flat in flats)
        if size and marks.counters is not None:
            marks.counters.add("pipeline", 1, size)
        with self._lock:
            inline = self._queued == 0 and size <= _INLINE_BYTES
            if snapshot and not inline:
                flats = [flat.clone() for flat in flats]
            parts = [memoryview(_LENGTH.pack(len(head)) + head), *(_bytes_of(flat) for flat in flats)]
            if inline:
                self._send_all(parts)
            else:
                self._queued += 1
                self._queue.put((parts, flats))

    def drain(self, timeout_seconds: float) -> None:
        """Wait until all that the peer has sent is received; for when it is gone."""
        self._threads[0].join(timeout_seconds)

    def close(self) -> None:
        """Send what is queued, then close; the peer's reader finds the end of the stream."""
        self.closing = True
        self._queue.put(None)
        self._threads[1].join(timeout=5)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send_all(self, parts: list[memoryview]) -> None:
        parts = [part for part in parts if part.nbytes]
        while parts:
            sent = self._socket.sendmsg(parts[:64])
            while parts and sent >= parts[0].nbytes:
                sent -= parts.pop(0).nbytes
            if sent:
                parts[0] = parts[0][sent:]

    def _write(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            try:
                self._send_all(item[0])
            except OSError as error:
                self._lost(self, error)
                return
            finally:
                del item  # else the last tensors sent would live until the next are
                with self._lock:
                    self._queued -= 1

    def _read(self) -> None:
        try:
            while True:
                message, forms = self._read_head()
                self._received(self, message, [(self._read_tensor(form), form.requires_grad) for form in forms])
                del message, forms
        except (EOFError, OSError) as error:
            if not self.closing:
                self._lost(self, error)

    def _read_head(self) -> tuple[Any, list[Form]]:
        length = bytearray(_LENGTH.size)
        self._fill(memoryview(length))
        head = bytearray(_LENGTH.unpack(length)[0])
        self._fill(memoryview(head))
        message, forms = pickle.loads(head)
        return message, forms

    def _read_tensor(self, form: Form) -> torch.Tensor:
        flat = torch.empty(form.shape, dtype=form.dtype)
        self._fill(_bytes_of(flat))
        if form.order is not None:
            inverse = sorted(range(len(form.order)), key=form.order.__getitem__)
            flat = flat.permute(inverse)
        return flat if self._device.type == "cpu" else flat.to(self._device)

    def _fill(self, view: memoryview) -> None:
        while view.nbytes:
            count = self._socket.recv_into(view, view.nbytes, socket.MSG_WAITALL)
            if count == 0:
                raise EOFError("the connection was closed")
            view = view[count:]


Lost = Callable[[Link, BaseException], None]
