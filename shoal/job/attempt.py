"""One life of a job's hosts, from the start of the first to the end of the last."""

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from docker.errors import APIError, DockerException
from requests.exceptions import RequestException

from shoal.job import logs
from shoal.job.artifacts import finished_or_absent, first_file
from shoal.job.describe import HostEnd
from shoal.job.docker_hosts import Hosts
from shoal.job.interrupts import Event, Interrupts
from shoal.job.live import Display
from shoal.job.metrics import Metrics
from shoal.job.plan import ML, Plan
from shoal.job.progress import Progress
from shoal.job.side_by_side import side_by_side
from shoal.job.supervise import FAILED_STOP_GRACE_S, STOP_GRACE_S, Reason, Signal, Supervisor

ENGINE_ERRORS = (DockerException, RequestException)
_CANNOT_START = 127  # as a shell says of a command that cannot be executed
_LOG_POLL_S = 0.2  # how soon Ctrl-C ends the wait for the last lines of a host that has ended

_WHY: dict[Reason | None, str] = {
    None: "",
    "failed": "the job has failed",
    "interrupted": f"stopping; {STOP_GRACE_S:.0f} s to end, Ctrl-C again kills at once",
    "max-runtime": "MaxRuntimeInSeconds have passed",
    "spot": f"interrupted, as --interrupt-after says; {STOP_GRACE_S:.0f} s to end",
}


def why(signal: Signal, supervisor: Supervisor) -> str:
    """Return why hosts get a signal now."""
    if signal == "SIGTERM":
        return _WHY[supervisor.reason]
    grace = FAILED_STOP_GRACE_S if supervisor.reason == "failed" else STOP_GRACE_S
    return "Ctrl-C again" if supervisor.hurried else f"not ended {grace:.0f} s after SIGTERM"


class Attempt:
    """The hosts of a job while they live. `go` may be called once."""

    def __init__(
        self,
        hosts: Hosts,
        plan: Plan,
        supervisor: Supervisor,
        interrupts: Interrupts,
        progress: Progress,
        printer: logs.Printer,
        metrics: Metrics,
        display: Display | None = None,
    ) -> None:
        self._hosts, self._plan, self._supervisor = hosts, plan, supervisor
        self._interrupts, self._progress, self._printer = interrupts, progress, printer
        self._metrics, self._display = metrics, display
        self._start_errors: dict[str, str] = {}
        self._followers: list[threading.Thread] = []

    def start(self) -> None:
        """Start all hosts side by side, but none any more when the user has had enough or one could not be started."""
        supervisor, names = self._supervisor, self._supervisor.hosts
        up = dict(zip(names, side_by_side(self._start, names), strict=True))
        for name in names:
            if not up[name]:
                supervisor.exited(name, _CANNOT_START if name in self._start_errors else 0, time.monotonic())
            elif self._display is not None:
                self._display.follow(name, self._hosts.stats(name))
        side_by_side(self._hosts.limit_link, [name for name in names if up[name]])
        supervisor.up(time.monotonic())
        if supervisor.done and self._interrupts:
            supervisor.interrupt(time.monotonic())

    def _start(self, name: str) -> bool:
        """Start a host and follow its output; return whether it is up."""
        if self._interrupts or self._start_errors:
            return False
        chunks = self._hosts.output(name)
        try:
            self._hosts.start(name)
        except APIError as error:
            self._start_errors[name] = f"{name} could not be started: {error.explanation or error}"
            return False
        file = self._plan.run_folder / "logs" / f"{name}.log"
        self._follow(logs.follow, name, chunks, file, self._printer, self._metrics.line)
        threading.Thread(target=self._wait, args=(name, self._interrupts.events), daemon=True).start()
        return True

    def wait(self) -> list[HostEnd]:
        """Let time pass until every host has ended and its output is in its file."""
        self._supervise()
        before = len(self._interrupts)
        for follower in self._followers:
            # A reader that stalls (a pager) stalls this, as it would any program; the log file must become whole.
            while follower.is_alive() and len(self._interrupts) == before:
                follower.join(_LOG_POLL_S)
        return side_by_side(self._end, self._supervisor.hosts)

    def _supervise(self) -> None:
        supervisor = self._supervisor
        while not supervisor.done:
            due = supervisor.due(time.monotonic())
            if due is not None:
                self._progress.note(f"{due} to {', '.join(supervisor.running)}: {why(due, supervisor)}")
                for name in supervisor.running:
                    self._hosts.signal(name, due)
                continue
            deadline = supervisor.next_deadline
            try:
                event = self._interrupts.events.get(
                    timeout=None if deadline is None else max(0.0, deadline - time.monotonic())
                )
            except queue.Empty:
                continue
            self._take_note(event)

    def _take_note(self, event: Event) -> None:
        supervisor = self._supervisor
        if isinstance(event, BaseException):
            raise event
        if event is None:
            supervisor.interrupt(time.monotonic())
            return
        name, code = event
        supervisor.exited(name, code, time.monotonic())
        if self._display is not None:
            self._display.ended(name, code)
        if code != 0 and supervisor.reason == "failed":
            self._progress.note(f"{name} ended with exit code {code}")

    def _end(self, name: str) -> HostEnd:
        state = self._hosts.state(name)
        failed = state["ExitCode"] != 0  # what a host that has not says there, nobody asks
        stream = self._hosts.read(name, f"{ML}/output/failure") if failed else None
        failure = first_file(stream) if stream is not None else b""
        if failure:
            self._keep(failure, self._plan.run_folder / "logs" / f"{name}.failure")
        return HostEnd(
            name=name,
            exit_code=state["ExitCode"],
            started=state["StartedAt"],
            finished=state["FinishedAt"],
            out_of_memory=state["OOMKilled"],
            failure=failure.decode(errors="replace") or self._start_errors.get(name, ""),
        )

    def _keep(self, failure: bytes, file: Path) -> None:
        try:
            with finished_or_absent(file) as stream:
                stream.write(failure)
        except OSError as error:  # its beginning is in the description, which matters more
            self._progress.note(f"{file} cannot be written: {error.strerror}")

    def _wait(self, name: str, events: queue.SimpleQueue[Event]) -> None:
        try:
            events.put((name, self._hosts.wait(name)))
        except ENGINE_ERRORS as error:
            events.put(error)

    def _follow(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        self._followers.append(thread)
