"""The life of one job on this machine: start its hosts, follow them, stop them, collect what they leave, say the end.

Everything that decides is elsewhere (`plan`, `supervise`, `describe`); here things happen, in the order they happen.
"""

import contextlib
import json
import queue
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import docker
from docker.errors import APIError, DockerException
from requests.exceptions import RequestException
from rich.console import Console

from shoal.errors import ShoalError
from shoal.job import logs
from shoal.job.artifacts import finished_or_absent, first_file, write_archive
from shoal.job.describe import History, HostEnd, description, failure_reason, final_status, model_archive
from shoal.job.docker_hosts import Hosts
from shoal.job.plan import ML, Plan
from shoal.job.progress import Progress
from shoal.job.supervise import STOP_GRACE_S, Reason, Supervisor

MAX_RUNTIME_EXIT_CODE = 124  # as timeout(1)
_CANNOT_START = 127  # as a shell says of a command that cannot be executed
_LOG_POLL_S = 0.2  # how soon Ctrl-C ends the wait for the last lines of a host that has ended
_ENGINE_ERRORS = (DockerException, RequestException)


@dataclass(frozen=True)
class Result:
    """How a job ended: its final description and the exit code of the command."""

    description: dict[str, Any]
    exit_code: int


class _GivenUp(Exception):  # noqa: N818 - the user's wish, not an error
    """The user does not want to wait for the results."""


class JobRun:
    """One run of a plan. `go` may be called once."""

    def __init__(self, client: docker.DockerClient, plan: Plan, progress: Progress, console: Console) -> None:
        self._client, self._plan, self._progress = client, plan, progress
        self._printer = logs.Printer(console, [host.name for host in plan.hosts])
        self._history = History(created=datetime.now(UTC))
        self._events: queue.SimpleQueue[tuple[str, int] | BaseException | None] = queue.SimpleQueue()
        self._interrupts: list[int] = []
        self._start_errors: dict[str, str] = {}
        self._followers: list[threading.Thread] = []

    def go(self) -> Result:
        """Run the job to its end; containers and network are gone afterwards, whatever happens.

        Raises:
            ShoalError: the run folder exists, or the engine failed.
        """
        with self._listening_to_signals():
            self._make_run_folder()
            self._enter("Starting", f"{self._plan.name}: {_hosts(len(self._plan.hosts))}, {self._plan.image}")
            hosts = Hosts(self._client, self._plan)
            try:
                with hosts:
                    return self._live(hosts)
            except (*_ENGINE_ERRORS, tarfile.ReadError) as error:
                raise self._broken(f"the Docker engine failed: {error}") from error
            except OSError as error:
                raise self._broken(f"{error.filename or self._plan.run_folder}: {error.strerror}") from error
            finally:
                if hosts.left_behind:
                    self._progress.note(f"could not be removed, the next run will try: {', '.join(hosts.left_behind)}")

    def _broken(self, what: str) -> ShoalError:
        """Return the error for a job that could not be brought to its end, told in its description as well."""
        with contextlib.suppress(OSError):
            self._enter("Failed", what)
            self._write(description(self._plan, self._history, ("Failed", "Failed"), f"InternalServerError: {what}"))
        return ShoalError(what, exit_code=3)

    def _live(self, hosts: Hosts) -> Result:
        hosts.create()
        supervisor = Supervisor(tuple(h.name for h in self._plan.hosts), time.monotonic(), self._plan.max_runtime_s)
        self._start(hosts, supervisor)
        self._supervise(hosts, supervisor)
        interrupts_before = len(self._interrupts)
        self._enter("Uploading", "all hosts have ended")
        ends = [self._end(hosts, name) for name in supervisor.hosts]
        lost: OSError | None = None
        given_up = False
        try:
            given_up = self._collect(hosts, interrupts_before)
        except OSError as error:
            # Without its traceback: the frames in it keep the engine's half-read answer open, and the engine would
            # wait a minute for its end before it removes the host.
            lost = OSError(error.errno, error.strerror, error.filename)
        if lost is not None:
            raise lost
        return self._conclude(supervisor.reason, ends, given_up)

    def _start(self, hosts: Hosts, supervisor: Supervisor) -> None:
        """Start every host, unless the user has had enough or one cannot be started."""
        self._enter("Training")
        for name in supervisor.hosts:
            if self._interrupts or self._start_errors:
                supervisor.exited(name, 0, time.monotonic())
                continue
            chunks = hosts.output(name)
            try:
                hosts.start(name)
            except APIError as error:
                self._start_errors[name] = f"{name} could not be started: {error.explanation or error}"
                supervisor.exited(name, _CANNOT_START, time.monotonic())
                continue
            self._thread(logs.follow, name, chunks, self._plan.run_folder / "logs" / f"{name}.log", self._printer)
            threading.Thread(target=self._wait, args=(hosts, name), daemon=True).start()
        if supervisor.done and self._interrupts:
            supervisor.interrupt(time.monotonic())

    def _supervise(self, hosts: Hosts, supervisor: Supervisor) -> None:
        """Let time pass until every host has ended."""
        while not supervisor.done:
            due = supervisor.due(time.monotonic())
            if due is not None:
                self._progress.note(f"{due} to {', '.join(supervisor.running)}: {_WHY[supervisor.reason]}")
                for name in supervisor.running:
                    hosts.signal(name, due)
                continue
            deadline = supervisor.next_deadline
            try:
                event = self._events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                continue
            self._take_note(event, supervisor)
        before = len(self._interrupts)
        for follower in self._followers:
            # A reader that stalls (a pager) stalls this, as it would any program; the log file must become whole.
            while follower.is_alive() and len(self._interrupts) == before:
                follower.join(_LOG_POLL_S)

    def _take_note(self, event: tuple[str, int] | BaseException | None, supervisor: Supervisor) -> None:
        if isinstance(event, BaseException):
            raise event
        if event is None:
            supervisor.interrupt(time.monotonic())
            return
        name, code = event
        supervisor.exited(name, code, time.monotonic())
        if code != 0 and supervisor.reason == "failed":
            self._progress.note(f"{name} ended with exit code {code}")

    def _end(self, hosts: Hosts, name: str) -> HostEnd:
        state = hosts.state(name)
        stream = hosts.read(name, f"{ML}/output/failure")
        failure = first_file(stream) if stream is not None else b""
        if failure:
            with finished_or_absent(self._plan.run_folder / "logs" / f"{name}.failure") as file:
                file.write(failure)
        return HostEnd(
            name=name,
            exit_code=state["ExitCode"],
            started=state["StartedAt"],
            finished=state["FinishedAt"],
            out_of_memory=state["OOMKilled"],
            failure=failure.decode(errors="replace") or self._start_errors.get(name, ""),
        )

    def _collect(self, hosts: Hosts, before: int) -> bool:
        """Write the archives; return whether the user gave the collecting up."""
        told = False

        def still_wanted() -> None:
            nonlocal told
            if len(self._interrupts) > before and not told:
                told = True
                self._progress.note("collecting results; Ctrl-C once more gives them up")
            if len(self._interrupts) > before + 1:
                raise _GivenUp

        try:
            for name, folder in (("model", f"{ML}/model"), ("output", f"{ML}/output/data")):
                target = self._plan.run_folder / "output" / f"{name}.tar.gz"
                for note in write_archive(target, self._streams(hosts, folder), still_wanted):
                    self._progress.note(f"{target.name}: {note}")
        except _GivenUp:
            self._progress.note("results were not all collected")
            return True
        return False

    def _streams(self, hosts: Hosts, folder: str) -> Iterator[tuple[str, Iterator[bytes]]]:
        for host in self._plan.hosts:
            stream = hosts.read(host.name, folder)
            if stream is not None:
                yield host.name, stream

    def _conclude(self, reason: Reason | None, ends: list[HostEnd], given_up: bool) -> Result:
        status, secondary = final_status(reason)
        failure = failure_reason(ends) if status == "Failed" else ""
        self._enter(secondary, failure.strip() or _shown(model_archive(self._plan)))
        final = description(self._plan, self._history, (status, secondary), failure, ends)
        self._write(final)
        codes = {None: 0, "failed": 1, "max-runtime": MAX_RUNTIME_EXIT_CODE}
        stopped = 128 + (self._interrupts[0] if self._interrupts else signal.SIGINT)
        return Result(final, stopped if given_up or reason == "interrupted" else codes[reason])

    def _wait(self, hosts: Hosts, name: str) -> None:
        try:
            self._events.put((name, hosts.wait(name)))
        except _ENGINE_ERRORS as error:
            self._events.put(error)

    def _thread(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        self._followers.append(thread)

    @contextlib.contextmanager
    def _listening_to_signals(self) -> Iterator[None]:
        """Turn the signals that ask `shoal` to stop into events, until the job is cleaned up."""

        def note(number: int, _frame: FrameType | None) -> None:
            self._interrupts.append(number)
            self._events.put(None)

        # A signal that whoever started us had ignored (nohup) stays ignored.
        wanted = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _make_run_folder(self) -> None:
        folder = self._plan.run_folder
        try:
            folder.mkdir(parents=True)
            (folder / "logs").mkdir()
            (folder / "output").mkdir()
        except FileExistsError as error:
            raise ShoalError(
                f"TrainingJobName: {self._plan.name!r} is taken: {folder} exists; "
                f"give another name: --job-name {_free_name(folder)}"
            ) from error
        except OSError as error:
            raise ShoalError(f"OutputDataConfig.S3OutputPath: cannot make {folder}: {error.strerror}") from error

    def _enter(self, stage: str, message: str = "") -> None:
        self._history.enter(stage, datetime.now(UTC), message)
        self._progress.stage(stage, message)
        if stage in ("Starting", "Training", "Uploading"):
            self._write(description(self._plan, self._history, ("InProgress", stage)))

    def _write(self, described: dict[str, Any]) -> None:
        with finished_or_absent(self._plan.run_folder / "job.json") as file:
            file.write((json.dumps(described, indent=2) + "\n").encode())


_WHY: dict[Reason | None, str] = {
    None: "",
    "failed": "the job has failed",
    "interrupted": f"stopping; {STOP_GRACE_S:.0f} s to end, Ctrl-C again kills at once",
    "max-runtime": "MaxRuntimeInSeconds have passed",
}


def _hosts(count: int) -> str:
    return f"{count} host" if count == 1 else f"{count} hosts"


def _shown(path: Path) -> str:
    """Return a path as short as a user at this prompt needs it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _free_name(taken: Path) -> str:
    number = 2
    while (taken.parent / f"{taken.name}-{number}").exists():
        number += 1
    return f"{taken.name}-{number}"
