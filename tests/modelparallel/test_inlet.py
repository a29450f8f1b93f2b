"""The thread that waits reads the connections (server/inlet.py, link.py, incoming.py, wire.py)."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from smdistributed.modelparallel.torch.server import messages as say
from smdistributed.modelparallel.torch.server import wire
from smdistributed.modelparallel.torch.server.ambient import Ambient
from smdistributed.modelparallel.torch.server.failures import Failure
from smdistributed.modelparallel.torch.server.incoming import Incoming, Message
from smdistributed.modelparallel.torch.server.inlet import Inlet
from smdistributed.modelparallel.torch.server.link import Link
from smdistributed.modelparallel.torch.server.tasks import Waiter
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
Got = queue.SimpleQueue[tuple[Any, list[tuple[torch.Tensor, bool]], int]]


class Ends:
    """Two ends of a connection: `near` is read by an inlet, whose messages and losses are kept; `far` is not read."""

    def __init__(self, inlet: Inlet) -> None:
        one, other = socket.socketpair()
        self.got: Got = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.on_message: Callable[[Any], None] = lambda _: None
        self.near = Link(one, 1, CPU, self._received, lambda _, error: self.lost.put(error))
        self.far = Link(other, 0, CPU, lambda *_: None, lambda *_: None)
        inlet.add(self.near)

    def _received(self, _link: Link, message: Any, tensors: list[tuple[torch.Tensor, bool]]) -> None:
        self.got.put((message, tensors, threading.get_ident()))
        self.on_message(message)


@pytest.fixture
def inlet() -> Iterator[Inlet]:
    inlet = Inlet(spins=True)
    yield inlet
    inlet.close()


def read_alone(inlet: Inlet) -> None:
    """Let the tender step back for the length of a test: from now on nobody reads who does not wait."""
    inlet.stepping(True)
    inlet._closed = True
    inlet._ring()
    assert inlet._tender is not None
    inlet._tender.join(10)


MESSAGES = [
    say.Forward(3, (0, 1), 0, Ambient(True, False, ()), ((1, ("a", "b")), (2, ("c",))), 1, b"x" * 300),
    say.Forward(3, (0,), 0, Ambient(False, True, (("cpu", True, torch.bfloat16),)), ((1, ("a",)),), 0, b""),
    say.Backward(1 << 40, (5, 1, -2), 3, 0, (0, 2)),
    say.Reply(1, (0,), b"", ()),
    say.Output(1, 2, 3, b"z"),
    say.MicrobatchDone(1, 7),
    say.BodiesDone(2),
    say.StepEnd(2),
    say.Abort(4, Failure(1, None, "it", "ValueError", "text", "trace", None)),
    say.Farewell(1, 9),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_head_is_read_as_it_was_written(message: Any) -> None:
    """Every message, with its types: what follows tells one from another by them."""
    forms = [wire.Form(torch.bfloat16, (2, 0, 3), (2, 0, 1), True), wire.Form(torch.complex64, (), None, False)]
    found, found_forms = wire.decode(memoryview(bytearray(wire.encode(message, forms))))
    assert (found, found_forms) == (message, forms)
    assert type(found) is type(message)
    assert all(type(form) is wire.Form for form in found_forms)
    if isinstance(message, say.Forward):
        assert type(found.ambient) is Ambient


def test_every_dtype_has_a_name_of_its_own() -> None:
    """Of torch's aliases (torch.float, torch.half) the one that the dtype calls itself."""
    kinds = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for dtype in kinds:
        form = wire.Form(dtype, (1,), None, False)
        assert wire.decode(memoryview(wire.encode(say.StepEnd(1), [form])))[1] == [form]


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20])
def test_a_message_comes_in_pieces_of_any_size(piece: int) -> None:
    """Heads beyond the buffer, tensors beyond it, empty ones and none: all are whole only with their last byte."""
    one, other = socket.socketpair()
    sent = [
        (say.Output(1, 0, 0, b"s"), [torch.arange(5.0)]),
        (say.Output(1, 1, 0, b"l" * 100_000), [torch.empty(0, 3), torch.arange(50_000).view(2, 25_000).t()]),
        (say.StepEnd(1), []),
    ]
    if piece == 1:
        sent = sent[::2]
    link = Link(other, 0, CPU, lambda *_: None, lambda *_: None)
    middle = bytearray()
    for message, tensors in sent:
        link.send(message, tensors)
    link.close()
    while data := one.recv(1 << 20):
        middle += data
    a, b = socket.socketpair()
    incoming = Incoming(b, CPU)
    found: list[Message] = []
    for start in range(0, len(middle), piece):
        chunk = memoryview(middle)[start : start + piece]
        while chunk:
            chunk = chunk[a.send(chunk[:65536]) :]
            while (whole := incoming.next()) is not None or incoming.pending:
                if whole is not None:
                    found.append(whole)
    assert [message for message, _ in found] == [message for message, _ in sent]
    for (_, received), (_, expected) in zip(found, sent, strict=True):
        assert all(torch.equal(x, y) and x.stride() == y.stride() for (x, _), y in zip(received, expected, strict=True))
    a.close()
    with pytest.raises(EOFError):
        incoming.next()


def test_the_thread_that_waits_reads(inlet: Inlet) -> None:
    """Its own answer wakes no other thread."""
    ends, waiter = Ends(inlet), Waiter()
    read_alone(inlet)
    ends.on_message = lambda _: inlet.wake(waiter)
    threading.Timer(0.05, lambda: ends.far.send(say.StepEnd(1), [torch.ones(3)])).start()
    inlet.wait(waiter)
    message, tensors, thread = ends.got.get(timeout=0)
    assert message == say.StepEnd(1)
    assert torch.equal(tensors[0][0], torch.ones(3))
    assert thread == threading.get_ident()


def test_a_reader_that_woke_another_gives_up_reading(inlet: Inlet) -> None:
    """The one that was woken reads when it waits next; the first one sleeps until it is told."""
    ends, first, second = Ends(inlet), Waiter(), Waiter()
    read_alone(inlet)
    ends.on_message = lambda message: inlet.wake(second if message == say.StepEnd(1) else first)
    readers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def other() -> None:
        second.told.acquire()  # not its turn to read yet
        readers.put(threading.get_ident())
        inlet.wait(second)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    threading.Timer(0.05, lambda: ends.far.send(say.StepEnd(1), [])).start()
    threading.Timer(0.30, lambda: ends.far.send(say.StepEnd(2), [])).start()
    inlet.wait(first)
    assert ends.got.get(timeout=0)[2] == threading.get_ident()
    assert ends.got.get(timeout=0)[2] == readers.get(timeout=0) == thread.ident
    inlet.wake(second)
    thread.join(10)


def test_a_reader_is_woken_by_a_thread_that_does_not_read(inlet: Inlet) -> None:
    """It sleeps in the system, not at its lock: it is rung for."""
    Ends(inlet)
    read_alone(inlet)
    for pause in (0.0, 0.0005, 0.05):
        waiter = Waiter()
        threading.Timer(pause, inlet.wake, (waiter,)).start()
        inlet.wait(waiter)


@pytest.mark.parametrize("busy", [True, False])
def test_a_reader_sleeps_while_its_rank_has_work(inlet: Inlet, monkeypatch: pytest.MonkeyPatch, busy: bool) -> None:
    """To look again and again takes the interpreter from the thread that works."""
    ends, waiter = Ends(inlet), Waiter()
    read_alone(inlet)
    inlet.busy, inlet._soon = busy, True
    looks = 0
    glance = inlet._glance

    def counted() -> list[tuple[int, int]]:
        nonlocal looks
        looks += 1
        return glance()

    monkeypatch.setattr(inlet, "_glance", counted)
    ends.on_message = lambda _: inlet.wake(waiter)
    threading.Timer(0.05, lambda: ends.far.send(say.StepEnd(1), [])).start()
    inlet.wait(waiter)
    assert (looks == 1) == busy


@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize("seconds", [0.0005, 0.0025])
def test_a_pause_ends_when_nothing_comes(inlet: Inlet, reading: bool, seconds: float) -> None:
    """Whether the one who pauses reads or another does; epoll's whole milliseconds or less."""
    Ends(inlet)
    read_alone(inlet)
    assert reading or inlet._role.acquire(blocking=False)
    until = time.perf_counter() + seconds
    inlet.pause(Waiter(), until)
    assert time.perf_counter() >= until


@pytest.mark.parametrize("reading", [True, False])
def test_a_pause_ends_with_what_it_is_for(inlet: Inlet, reading: bool) -> None:
    """The one who pauses is told, by itself or by the thread that reads."""
    ends, waiter = Ends(inlet), Waiter()
    if reading:
        read_alone(inlet)
    else:
        inlet.stepping(True)
        while inlet._thread is None:  # until the tender reads
            time.sleep(0.001)
    ends.on_message = lambda _: inlet.wake(waiter)
    threading.Timer(0.05, lambda: ends.far.send(say.StepEnd(1), [])).start()
    inlet.pause(waiter, time.perf_counter() + 600)
    assert (ends.got.get(timeout=0)[2] == threading.get_ident()) == reading


def test_the_tender_reads_when_nobody_does(inlet: Inlet) -> None:
    """What comes while a task runs is taken in."""
    ends = Ends(inlet)
    inlet.stepping(True)
    for number in range(3):
        ends.far.send(say.StepEnd(number), [torch.ones(300_000)])
        message, tensors, thread = ends.got.get(timeout=10)
        assert message == say.StepEnd(number)
        assert tensors[0][0].sum() == 300_000
        assert thread != threading.get_ident()


def test_what_has_come_is_taken_before_a_decision(inlet: Inlet) -> None:
    """`look` takes all that is there and does not wait for more."""
    ends = Ends(inlet)
    read_alone(inlet)
    inlet.look()
    for number in range(5):
        ends.far.send(say.StepEnd(number), [])
    inlet.look()
    assert [ends.got.get(timeout=0)[0].step for _ in range(5)] == list(range(5))


class Everything(TorchDispatchMode):
    """Sees every operation of its thread."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise AssertionError(f"{func} in the place of a task that waits")


@pytest.mark.parametrize("name", ["inference", "device", "function", "dispatch"])
def test_a_task_may_wait_in_any_mode_of_torch(inlet: Inlet, name: str) -> None:
    """What it reads for others is no inference tensor and no mode's; where a mode sees all, another thread reads."""
    ends, waiter = Ends(inlet), Waiter()
    modes: dict[str, Any] = {
        "inference": torch.inference_mode(),
        "device": torch.device("meta"),
        "function": BaseTorchFunctionMode(),
        "dispatch": Everything(),
    }
    if name == "dispatch":
        inlet.stepping(True)
    else:
        read_alone(inlet)
    ends.on_message = lambda _: inlet.wake(waiter)
    ends.far.send(say.StepEnd(1), [torch.ones(3)])
    with modes[name]:
        inlet.wait(waiter)
    _, tensors, thread = ends.got.get(timeout=0)
    assert (thread == threading.get_ident()) == (name != "dispatch")
    assert tensors[0][0].device == CPU
    assert not tensors[0][0].is_inference()


@pytest.mark.parametrize(("snapshot", "count"), [(True, 20), (False, 1)])
def test_sending_does_not_wait_for_a_peer_that_does_not_read(snapshot: bool, count: int) -> None:
    """What there is no room for is sent by the writer, as it was when it was sent: small tensors in any case."""
    one, other = socket.socketpair()
    link = Link(other, 0, CPU, lambda *_: None, lambda *_: None)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    values = torch.arange(200_000.0)  # below the size that always goes to the writer
    began = time.monotonic()
    for number in range(count):
        values.fill_(number)
        link.send(say.StepEnd(number), [values], snapshot)
    values.fill_(-1)
    assert time.monotonic() - began < 60
    incoming = Incoming(one, CPU)
    found: list[Message] = []
    while len(found) < count:
        whole = incoming.next()
        if whole is not None:
            found.append(whole)
    assert [message.step for message, _ in found] == list(range(count))
    assert all((tensors[0][0] == number).all() for number, (_, tensors) in enumerate(found))
    link.close()


@pytest.mark.parametrize("end", ["closed", "garbage"])
def test_an_end_is_told_once(inlet: Inlet, end: str) -> None:
    """Whoever reads at that moment goes on: an error of the connection is not raised in its place."""
    ends, waiter = Ends(inlet), Waiter()
    read_alone(inlet)
    if end == "garbage":
        ends.far._socket.sendall(b"\x05\0\0\0\0\0\0\0abcde")
    else:
        ends.far.close()
    threading.Timer(0.1, inlet.wake, (waiter,)).start()
    inlet.wait(waiter)
    assert ends.near.ended.wait(0)
    assert ("closed" if end == "closed" else "marshal") in str(ends.lost.get(timeout=0))
    inlet.look()
    assert ends.lost.empty()
    inlet.drain(ends.near, 0)
