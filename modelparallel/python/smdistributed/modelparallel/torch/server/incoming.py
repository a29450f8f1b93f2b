"""What a connection brings: bytes as they come, messages when they are whole. Nothing here waits."""

from __future__ import annotations

import socket
import struct
from typing import Any, Generator, List, Tuple

import torch

from . import wire

LENGTH = struct.Struct("<Q")
# What is small comes with one call of the system; a tensor larger than this goes straight to where it belongs.
_BUFFER_BYTES = 64 << 10

Message = Tuple[Any, List[Tuple[torch.Tensor, bool]]]


class Incoming:
    """The receiving half of a stream socket.

    Args:
        sock: from another rank; only this object receives from it.
        device: where received tensors go.
    """

    def __init__(self, sock: socket.socket, device: torch.device) -> None:
        self._socket = sock
        self._device = device
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0
        self._whole: Message | None = None
        self._steps = self._parse()

    def next(self) -> Message | None:
        """Return the next message, with each tensor whether it needs a gradient; None while some of it is missing.

        Raises:
            EOFError: the peer closed the connection.
            OSError: the connection is gone.
        """
        next(self._steps)
        whole, self._whole = self._whole, None
        return whole

    @property
    def pending(self) -> bool:
        """Whether bytes have come that `next` has not looked at."""
        return self._begin < self._end

    def _parse(self) -> Generator[None, None, None]:
        """Go on until a message is whole, or until bytes are missing; for ever."""
        length = memoryview(bytearray(LENGTH.size))
        while True:
            yield from self._fill(length)
            head = memoryview(bytearray(LENGTH.unpack(length)[0]))
            yield from self._fill(head)
            message, forms = wire.decode(head)
            tensors: list[tuple[torch.Tensor, bool]] = []
            for form in forms:
                flat = wire.empty(form)
                yield from self._fill(wire.bytes_of(flat))
                tensors.append((wire.placed(flat, form, self._device), form.requires_grad))
                del flat
            self._whole = (message, tensors)
            # Nothing of it stays here: its tensors would live until the next message comes.
            del message, forms, tensors, head
            yield

    def _fill(self, view: memoryview) -> Generator[None, None, None]:
        """Fill it with the next bytes; yields while they are missing."""
        while view.nbytes:
            have = min(self._end - self._begin, view.nbytes)
            if have:
                view[:have] = self._buffer[self._begin : self._begin + have]
                self._begin += have
                view = view[have:]
            elif view.nbytes >= _BUFFER_BYTES:
                view = view[self._receive(view) :]
                if view.nbytes:
                    yield
            else:
                self._begin, self._end = 0, self._receive(self._buffer)
                if not self._end:
                    yield

    def _receive(self, view: memoryview) -> int:
        """Return how many bytes came, 0 if none has."""
        try:
            count = self._socket.recv_into(view, view.nbytes, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        if count == 0:
            raise EOFError("the connection was closed")
        return count
