"""The event loop of `train` and its duties as PID 1: start commands, pass their output on, forward signals, reap.

One thread. Everything that can happen during a job (output, a child's end, a signal, a message or the death of another
host) is an event of this loop, so that no phase of a job is deaf to the others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import socket
import subprocess
import time
from typing import Any, Callable, Iterable, Mapping

from shoal_entrypoint import processes
from shoal_entrypoint.capture import Capture, RankCapture
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError, Outcome
from shoal_entrypoint.relay import Output, Stream

__all__ = ["Finished", "Supervisor"]

# For the rest of a job that has failed elsewhere: long enough for a handler, short enough that no host lingers.
ABORT_GRACE_SECONDS = 5.0
# For what a command leaves behind when it ends.
LEFTOVER_GRACE_SECONDS = 2.0
_KILL_SECONDS = 10.0
# For a service that nothing depends on.
_OPTIONAL_SECONDS = 2.0
_POLL_SECONDS = 0.02


class Finished:
    """How a command ended, and what it said."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.bytes = 0
        self.stdout = Capture()
        self.stderr = Capture()
        self.streams: set[Stream] = set()  # that are still open
        self.ranks: dict[int, RankCapture] = {}  # by local rank: those whose output came by pipes of their own


class Supervisor:
    """See the module. `stop` is a signal that the job got; `abort` is how the job has failed somewhere else."""

    def __init__(self, stop_grace: float) -> None:
        self.stop: int | None = None
        self.abort: Outcome | None = None
        self.on_stop: Callable[[int], None] = lambda _signum: None
        self.command: int | None = None  # the process id of what `run` runs
        # Who gets a forwarded signal, when a launcher knows better than "everybody".
        self.targets: Callable[[], list[int]] = self._below
        self.stop_grace = stop_grace
        self._signal: int | None = None
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, Finished] = {}
        self._holding: set[Stream] = set()  # streams with an unfinished line
        self._services: dict[Finished, Any] = {}  # each with the pipe that is its stdin
        self._optional: set[Finished] = set()  # services that nobody waits for
        self._deadline: float | None = None  # when SIGKILL follows
        self._stop_seen = False
        self._abort_seen = False
        self._receive, self._wake = socket.socketpair()
        self._receive.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._caught)
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)  # only to wake the loop
        self.watch(self._receive, self._drain_wakeups)
        processes.adopt_orphans()

    def watch(self, source: Any, callback: Callable[[], None]) -> None:
        """Call back whenever `source` can be read."""
        self._selector.register(source, selectors.EVENT_READ, callback)

    def unwatch(self, source: Any) -> None:
        """Stop watching."""
        with contextlib.suppress(KeyError, ValueError):  # closed or forgotten already
            self._selector.unregister(source)

    def request_stop(self, signum: int) -> None:
        """The job shall end: this host got a signal, or another host says that it did."""
        if self.stop is None:
            self.stop = signum
            log(f"{signal.Signals(signum).name}: stopping, {self.stop_grace:.0f} s for the script to end")
            self.on_stop(signum)

    def wait(self, done: Callable[[], bool], timeout: float | None = None, poll: float | None = None) -> bool:
        """Handle events until `done`, at most `timeout` seconds; whether it is done.

        `poll` is for conditions that no event announces, such as the end of another process's child.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            now = time.monotonic()
            self._react(now)  # first: what it finds may be what `done` looks for
            if done():
                return True
            if end is not None and now >= end:
                return False
            limits = (end, self._deadline, *(stream.due for stream in self._holding))
            waits = [limit - now for limit in limits if limit is not None]
            waits += [] if poll is None else [poll]
            self._step(max(0.0, min(waits)) if waits else None)

    def spawn(self, argv: list[str], cwd: str, env: Mapping[str, str], **options: Any) -> Finished:
        """Start a command in a session of its own, so that a terminal's signals reach it only through this loop."""
        popen = self._popen(argv, cwd, env, **options)
        finished = Finished(popen.pid)
        self._children[popen.pid] = finished
        popen.returncode = 0  # this loop reaps; Popen must neither wait nor warn
        return finished

    def serve(self, argv: list[str], cwd: str, env: Mapping[str, str], optional: bool = False) -> None:
        """Start a command that lives beside the job until end_services(): no signal to the job reaches it.

        One that is `optional` is killed if it does not end at once then.
        """
        popen = self._popen(argv, cwd, env, stdin=subprocess.PIPE)
        service = Finished(popen.pid)
        self._children[popen.pid] = service
        popen.returncode = 0
        self._services[service] = popen.stdin
        if optional:
            self._optional.add(service)

    def end_services(self) -> None:
        """Close their stdin, and wait for them; in a stopped job until its grace is over."""
        if not self._services:
            return
        for stdin in self._services.values():
            stdin.close()
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        needed = self._services.keys() - self._optional
        if not self.wait(lambda: _all_ended(needed), timeout=left):
            log("gave up waiting for the upload of intermediate output")
        self.wait(lambda: _all_ended(self._optional), timeout=_OPTIONAL_SECONDS)
        self._services.clear()
        self._kill()

    def run(self, argv: list[str], cwd: str, env: Mapping[str, str], output: Output | None = None) -> Finished:
        """Run a command to its end, with its output passed on as it comes; nothing of it is left running."""
        output = output or Output()
        child = self.start(argv, cwd, env, output)
        self.command = child.pid
        self.wait(lambda: child.returncode is not None)
        self.command = None
        self.clean_up()
        output.ended()
        self.finish(child)
        return child

    def start(self, argv: list[str], cwd: str, env: Mapping[str, str], output: Output) -> Finished:
        """Start a command whose output is passed on."""
        popen = self._popen(argv, cwd, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child = Finished(popen.pid)
        self._children[popen.pid] = child
        popen.returncode = 0
        for target, pipe, capture in ((1, popen.stdout, child.stdout), (2, popen.stderr, child.stderr)):
            self.relay(child, Stream(pipe, target, capture, output.through(target)))
        output.started(self, child)
        return child

    def relay(self, child: Finished, stream: Stream) -> None:
        """Pass on a stream of a command until its end."""
        child.streams.add(stream)
        self.watch(stream.pipe, lambda: self._readable(child, stream))

    def finish(self, child: Finished) -> None:
        """Take the rest of the output of a command that has ended."""
        # Its writers are gone, so end of file is near. Output still on its way is waited for, silence is not.
        seen = -1
        while child.streams and child.bytes > seen:
            seen = child.bytes
            self.wait(lambda: not child.streams, timeout=LEFTOVER_GRACE_SECONDS)
        for stream in list(child.streams):
            self._end(child, stream)

    def clean_up(self) -> None:
        """End every process below this one: SIGTERM, a grace (the rest of it, if the job was stopped), SIGKILL."""
        left = self._below()
        if not left:
            return
        now = time.monotonic()
        grace = LEFTOVER_GRACE_SECONDS if self._deadline is None else max(0.0, self._deadline - now)
        processes.send(left, signal.SIGTERM)
        if not self.wait(lambda: not self._below(), timeout=grace, poll=_POLL_SECONDS):
            self._kill()
            self.wait(lambda: not self._below(), timeout=_KILL_SECONDS, poll=_POLL_SECONDS)

    def _popen(self, argv: list[str], cwd: str, env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                argv, cwd=cwd, env=dict(env), start_new_session=True, **{"stdin": subprocess.DEVNULL, **options}
            )
        except (OSError, ValueError) as error:  # ValueError: a zero byte
            reason = str(error)
            if isinstance(error, ValueError) or error.errno == errno.E2BIG:
                from shoal_entrypoint.limits import refused

                reason = refused(argv, env)
            raise JobError(f"{argv[0]}: cannot be started: {reason}") from error

    def _readable(self, child: Finished, stream: Stream) -> None:
        count = stream.read()
        if count == 0:
            self._end(child, stream)
        elif count is not None:
            child.bytes += count
            (self._holding.discard if stream.due is None else self._holding.add)(stream)

    def _end(self, child: Finished, stream: Stream) -> None:
        self.unwatch(stream.pipe)
        stream.close()
        child.streams.discard(stream)
        self._holding.discard(stream)

    def _react(self, now: float) -> None:
        for stream in [stream for stream in self._holding if stream.due is not None and now >= stream.due]:
            stream.flush()
            self._holding.discard(stream)
        if self._signal is not None:
            self.request_stop(self._signal)
        if self.stop is not None and not self._stop_seen:
            self._stop_seen = True
            processes.send(self.targets(), self.stop)
            self._deadline = now + self.stop_grace
        # A stopped job keeps its grace: hosts end one after the other then, and the first is no reason to hurry.
        elif self.abort is not None and not self._abort_seen and not self._stop_seen:
            self._abort_seen = True
            processes.send(self.targets(), signal.SIGTERM)
            self._deadline = now + ABORT_GRACE_SECONDS
        if self._deadline is not None and now >= self._deadline:
            self._kill()
            # Once more soon: a process may have been born while the list was read.
            self._deadline = now + 1.0

    def _kill(self) -> None:
        processes.send(self._below(), signal.SIGKILL)

    def _below(self) -> list[int]:
        """Every process below this one but the services."""
        return processes.descendants(os.getpid(), without={service.pid for service in self._services})

    def _step(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)  # None: an orphan that was adopted
            if child is not None:
                child.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _caught(self, signum: int, _frame: object) -> None:
        # Only a note: a handler runs between any two instructions, the loop acts between two events.
        self._signal = self._signal or signum

    def _drain_wakeups(self) -> None:
        try:
            while self._receive.recv(4096):
                pass
        except BlockingIOError:
            pass


def _all_ended(commands: Iterable[Finished]) -> bool:
    return all(command.returncode is not None for command in commands)
