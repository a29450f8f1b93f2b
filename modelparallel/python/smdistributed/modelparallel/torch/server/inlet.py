"""Who reads what other ranks send: the thread that waits for it.

A thread that sleeps is woken by the system in some 50 to 100 microseconds on a virtual machine: more than a small
call's own work. So no thread of its own reads, hands over and goes back to sleep. As in the Leader/Followers pattern
(Schmidt et al., "Leader/Followers", PLoP 2000) one of those that have nothing else to do reads the connections of this
rank: a task that waits for an answer finds it there itself, a worker without a task finds its next one. A reader whose
message wakes another thread gives up reading: that one will read when it waits.

While a task runs nobody may be reading; so that what is large still comes in meanwhile, the tender, a thread of its
own, reads when nobody has for a moment.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Any, Callable

import torch

from .link import Link
from .tasks import Waiter

_TICK_SECONDS = 0.002  # how long nobody reads before the tender does, in a step
_IDLE_TICK_SECONDS = 0.1  # and between steps
# How long a reader looks again and again before it sleeps, where the wait before this one was short.
_SPIN_SECONDS = 0.001
_SHORT_SECONDS = 0.002
# How often it looks in the last millisecond of a pause.
_GLANCE_SECONDS = 0.0002


class Inlet:
    """The connections of a rank to all others, and whose turn it is to read them.

    Args:
        spins: whether there is a core for each rank of this host, so that one may look for an answer without sleeping.

    Attributes:
        busy: whether a thread of this rank has work: then nobody looks without sleeping, for that takes the interpreter
            from it.
        came_after: what is being handed on came after this (time.perf_counter): nobody may have looked for a while.
    """

    def __init__(self, spins: bool = False) -> None:
        self.busy = False
        self._spins = spins
        self._soon = False
        self._epoll = select.epoll()
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._links: dict[int, Link] = {}
        self._role = threading.Lock()
        self._thread: int | None = None  # of who reads, and the waiter in whose place it does
        self._reader: Waiter | None = None
        self._woke = False  # whether what the reader found woke another thread
        self._looked = self.came_after = 0.0
        self._turns = 0  # how often somebody began to read
        self._stepping = threading.Event()
        self._closed = False
        self._tender: threading.Thread | None = None

    def add(self, link: Link) -> None:
        """Read this connection from now on."""
        self._links[link.fileno()] = link
        self._epoll.register(link.fileno(), select.EPOLLIN)
        if self._tender is None:
            self._tender = threading.Thread(target=self._tend, name="smp-read", daemon=True)
            self._tender.start()

    def stepping(self, now: bool) -> None:
        """Say whether a step is under way: then the tender looks often."""
        if now:
            self._stepping.set()
        else:
            self._stepping.clear()

    def wait(self, waiter: Waiter) -> None:
        """Return when `wake(waiter)` was called; read meanwhile, unless another thread does."""
        if waiter.told.acquire(blocking=False):
            return
        reads = _may_make_tensors() and self._role.acquire(blocking=False)
        if not reads or not self._read(waiter, lambda: waiter.told.acquire(blocking=False)):
            waiter.told.acquire()

    def pause(self, waiter: Waiter, until: float) -> None:
        """As `wait`, but return at `until` (time.perf_counter) at the latest."""
        if _may_make_tensors() and self._role.acquire(blocking=False):
            self._read(waiter, lambda: waiter.told.acquire(blocking=False) or time.perf_counter() >= until, until)
        else:
            waiter.told.acquire(timeout=max(0.0, until - time.perf_counter()))

    def wake(self, waiter: Waiter) -> None:
        """Let the thread go on that waits there, or will."""
        reader = self._reader
        waiter.told.release()
        if self._thread == threading.get_ident():
            self._woke = self._woke or waiter is not reader
        elif self._reader is waiter:
            self._ring()

    @property
    def reader(self) -> Waiter | None:
        """In whose place the calling thread reads, if it does."""
        return self._reader if self._thread == threading.get_ident() else None

    def look(self) -> None:
        """Take what has come already, unless another thread reads."""
        if not self._links or not _may_make_tensors() or not self._role.acquire(blocking=False):
            return
        self._thread = threading.get_ident()
        self._turns += 1
        try:
            self._handle(self._glance())
        finally:
            self._thread = None
            self._role.release()

    def drain(self, link: Link, timeout_seconds: float) -> None:
        """Wait until all that the peer has sent is received; for when it is gone."""
        if self._thread != threading.get_ident():
            link.ended.wait(timeout_seconds)

    def close(self) -> None:
        """Let the tender end; the connections are closed by who made them."""
        self._closed = True
        self._stepping.set()
        self._ring()

    def _read(self, waiter: Waiter | None, over: Callable[[], bool], until: float | None = None) -> bool:
        """Read until `over`, or until another thread was woken; return whether over. The role is the caller's."""
        self._thread, self._reader, self._woke = threading.get_ident(), waiter, False
        self._turns += 1
        try:
            while not self._woke:
                if over():
                    return True
                self._handle(self._events(until))
            return over()
        finally:
            self._thread = self._reader = None
            self._role.release()

    def _events(self, until: float | None) -> list[tuple[int, int]]:
        began = time.perf_counter()
        events = self._glance()
        while not events and self._soon and not self.busy and self._looked - began < _SPIN_SECONDS:
            events = self._glance()
        if not events:
            events = self._sleep(until)
            self.came_after = self._looked = time.perf_counter()
        self._soon = self._spins and self._looked - began < _SHORT_SECONDS
        return events

    def _sleep(self, until: float | None) -> list[tuple[int, int]]:
        left = None if until is None else until - self._looked
        if left is None or left >= 0.001:
            return self._epoll.poll(left, 16)
        # epoll counts whole milliseconds, and would wait for the next one.
        time.sleep(max(0.0, min(left, _GLANCE_SECONDS)))
        return []

    def _glance(self) -> list[tuple[int, int]]:
        """Return what has come since somebody looked."""
        self.came_after = self._looked
        events = self._epoll.poll(0, 16)
        self._looked = time.perf_counter()
        return events

    def _handle(self, events: list[tuple[int, int]]) -> None:
        if not events:
            return
        with _plain_tensors():
            self._take(events)

    def _take(self, events: list[tuple[int, int]]) -> None:
        for descriptor, _ in events:
            link = self._links.get(descriptor)
            if link is None:
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
            elif not link.receive():
                del self._links[descriptor]
                with contextlib.suppress(OSError):  # closed here meanwhile
                    self._epoll.unregister(descriptor)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is ringing
            self._ringer.send(b"!")

    def _tend(self) -> None:
        seen = self._turns
        while not self._closed:
            if self._turns == seen and self._role.acquire(blocking=False):
                self._read(None, lambda: self._closed)
            seen = self._turns
            if self._stepping.wait(_IDLE_TICK_SECONDS):
                time.sleep(_TICK_SECONDS)


def _none() -> int:
    return 0


# A task may wait inside any mode of torch, and may read there for others. Releases that do not say so have no such
# modes.
_function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", _none)
_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", _none)


def _may_make_tensors() -> bool:
    """Whether tensors that this thread makes can be as everywhere: not where a mode takes part in all operations."""
    return not _dispatch_modes()


def _plain_tensors() -> contextlib.AbstractContextManager[Any]:
    """Let tensors be neither inference tensors, for other tasks could not train with them, nor a mode's."""
    if not torch.is_inference_mode_enabled() and not _function_modes():
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch._C.DisableTorchFunction())
    return stack
