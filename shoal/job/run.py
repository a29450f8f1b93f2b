"""The life of one job on this machine: bring its inputs, let its hosts live, collect what they leave, say the end.

Everything that decides is elsewhere (`plan`, `supervise`, `describe`); here things happen, in the order they happen.
"""

import contextlib
import queue
import shutil
import tarfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import docker
from rich.console import Console

from shoal.errors import ShoalError
from shoal.job import code, logs, staging
from shoal.job.attempt import ENGINE_ERRORS, Attempt
from shoal.job.checkpoints import Keeper
from shoal.job.collect import Collector
from shoal.job.describe import (
    FAILURE_CHARACTERS,
    History,
    HostEnd,
    failure_reason,
    final_status,
    model_uri,
)
from shoal.job.described import DescriptionFile
from shoal.job.docker_hosts import Hosts, NameInUseError
from shoal.job.interrupts import Interrupts
from shoal.job.limits import NO_LIMITS, Limits
from shoal.job.live import display_for
from shoal.job.metrics import Metrics, definitions
from shoal.job.objects import Objects
from shoal.job.periodic import repeatedly
from shoal.job.pipes import Pipes
from shoal.job.plan import DATA, Mount, Plan
from shoal.job.progress import Progress
from shoal.job.spec import FILE_SCHEME
from shoal.job.supervise import Reason, Supervisor
from shoal.job.survey import Survey

MAX_RUNTIME_EXIT_CODE = 124  # as timeout(1)
_BROKEN_EXIT_CODE = 3
_ENGINE_PATIENCE_S, _ENGINE_POLL_S = 60.0, 0.5
_BETWEEN_METRICS_S = 5.0  # that the description of a running job has
_IN_PROGRESS = ("Starting", "Downloading", "Training", "Interrupted", "Restarting", "Uploading")


@dataclass(frozen=True)
class Result:
    """How a job ended: its final description and the exit code of the command."""

    description: dict[str, Any]
    exit_code: int


@dataclass(frozen=True)
class Settings:
    """What the command line says of a run, and the job file does not."""

    limits: Limits = NO_LIMITS
    interrupt_after_s: float | None = None


class JobRun:
    """One run of a plan. `go` may be called once."""

    def __init__(
        self,
        client: docker.DockerClient,
        plan: Plan,
        inputs: tuple[tuple[Survey, ...], Objects],
        progress: Progress,
        console: Console,
        settings: Settings = Settings(),
    ) -> None:
        self._client, self._plan, self._progress, self._settings = client, plan, progress, settings
        self._surveys, self._objects = inputs
        names = [host.name for host in plan.hosts]
        self._metrics = Metrics(definitions(plan.request), shown=progress.console.is_terminal)
        self._display = display_for(progress.console, names, self._metrics)
        self._printer = logs.Printer(console, names, above=self._display.console if self._display else None)
        self._history = History(created=datetime.now(UTC))
        self._interrupts = Interrupts()
        self._spot_after_s = settings.interrupt_after_s
        self._staged: dict[str, list[Mount]] | None = None
        self._input = plan.run_folder / staging.FOLDER
        self._description = DescriptionFile(plan, self._history, self._metrics)
        self._ends: list[HostEnd] = []
        self._failure = ""  # why the script failed, if it did
        self._keepers = [Keeper(plan, folder, self._objects, progress) for folder in plan.kept]

    def go(self) -> Result:
        """Run the job to its end; containers and network are gone afterwards, whatever happens.

        Raises:
            ShoalError: the run folder exists, or the engine failed.
        """
        with self._interrupts.listening():
            self._make_run_folder()
            try:
                self._enter("Starting", f"{self._plan.name}: {_hosts(len(self._plan.hosts))}, {self._plan.image}")
                return self._attempts()
            except NameInUseError:
                shutil.rmtree(self._plan.run_folder, ignore_errors=True)
                raise
            except ShoalError as error:
                raise self._broken(str(error)) from error
            except (*ENGINE_ERRORS, tarfile.ReadError) as error:
                raise self._broken(f"the Docker engine failed: {error}") from error
            except OSError as error:
                raise self._broken(f"{error.filename or self._plan.run_folder}: {error.strerror}") from error
            finally:
                staging.clear(self._input)
                self._description.give_room_back()

    def _broken(self, what: str) -> ShoalError:
        """Return the error for a job that could not be brought to its end, told in its description as well."""
        with contextlib.suppress(OSError):
            self._enter("Failed", what)
            reason = self._failure or f"InternalServerError: {what}"[:FAILURE_CHARACTERS]
            self._description.write(("Failed", "Failed"), reason, self._ends)
        return ShoalError(what, exit_code=_BROKEN_EXIT_CODE)

    def _attempts(self) -> Result:
        """Let the hosts live until they end for good: again after an interruption, or after the engine has failed."""
        retries = self._plan.retries
        for number in range(1 << 30):
            hosts = Hosts(self._client, self._plan, self._settings.limits)
            try:
                with hosts:
                    result = self._attempt(hosts, number)
                if result is not None:
                    return result
                self._enter("Starting", _BEGINNING[any(kept.restored for kept in self._plan.kept)])
            except NameInUseError as error:
                if number == 0:
                    raise
                raise ShoalError(str(error)) from error
            except (*ENGINE_ERRORS, tarfile.ReadError) as error:
                if retries == 0 or self._interrupts:
                    raise
                retries -= 1
                self._enter("Restarting", f"the Docker engine failed: {error}; {retries} attempts left")
                self._await_engine()
                hosts.remove()
            finally:
                if hosts.left_behind:
                    self._progress.note(f"could not be removed, the next run will try: {', '.join(hosts.left_behind)}")
        raise AssertionError("a job ends")

    def _await_engine(self) -> None:
        """Wait until the engine answers: one that is started again takes some seconds."""
        deadline = time.monotonic() + _ENGINE_PATIENCE_S
        while True:
            try:
                self._client.ping()
            except ENGINE_ERRORS:
                if self._interrupts or time.monotonic() > deadline:
                    raise
                time.sleep(_ENGINE_POLL_S)
            else:
                return

    def _attempt(self, hosts: Hosts, number: int) -> Result | None:
        """Return how the job has ended; None if it is to begin again."""
        self._interrupts.events = queue.SimpleQueue()
        hosts.reserve()
        self._description.hold_room()
        self._stage()
        pipes = Pipes(self._surveys, self._objects, self._input / f"pipes-{number}", self._interrupts.events.put)
        with code.archive(self._plan.code, self._objects) as archive:
            hosts.create(self._mounts(pipes), archive)
        if count := sum(keeper.restore(hosts) for keeper in self._keepers):
            self._progress.note(f"{count} checkpoint files restored")
        used = self._history.seconds("Training")
        supervisor = Supervisor(
            tuple(h.name for h in self._plan.hosts),
            time.monotonic(),
            max(0.0, self._plan.max_runtime_s - used),
            self._spot_after_s,
        )
        self._enter("Training")
        attempt = Attempt(
            hosts,
            self._plan,
            supervisor,
            self._interrupts,
            self._progress,
            self._printer,
            self._metrics,
            self._display,
        )
        told = repeatedly(self._description.refresh, _BETWEEN_METRICS_S)
        try:
            with (
                told if self._metrics.defined else contextlib.nullcontext(),
                self._display.shown() if self._display else contextlib.nullcontext(),
            ):
                attempt.start()
                pipes.feed()
                for keeper in self._keepers:
                    keeper.watch(hosts)
                ends = attempt.wait()
        finally:
            pipes.stop()
            for keeper in self._keepers:
                keeper.stop()
        if supervisor.reason == "spot":
            self._spot_after_s = None
            self._enter("Interrupted", "all hosts have ended")
            for keeper in self._keepers:
                keeper.finish(hosts)
            return None
        if self._spot_after_s is not None and supervisor.reason is None:
            self._progress.note("the job ended before the time that --interrupt-after gives")
        return self._finish(hosts, supervisor.reason, ends)

    def _stage(self) -> None:
        """Bring what the hosts are to mount; once for all attempts."""
        if self._staged is not None:
            return
        if told := staging.amount(self._surveys):
            self._enter("Downloading", told)
        self._staged = staging.stage(self._surveys, self._objects, self._input, lambda: not self._interrupts)

    def _mounts(self, pipes: Pipes) -> dict[str, list[Mount]]:
        """Return what each host mounts beside its folders: what was staged, and its pipes."""
        mounts = {host: list(there) for host, there in (self._staged or {}).items()}
        direct = {host.name: host.mounts for host in self._plan.hosts}
        for host, folder in pipes.folders().items():
            others = mounts.setdefault(host, [])
            for mount in (*others, *direct[host]):
                staging.make_mount_point(folder, DATA, mount)
            others.insert(0, Mount(folder, DATA))
        return mounts

    def _finish(self, hosts: Hosts, reason: Reason | None, ends: list[HostEnd]) -> Result:
        """Collect everything that the hosts left, whatever of it fails; then say how the job ended."""
        self._ends, self._failure = ends, failure_reason(ends) if reason == "failed" else ""
        collector = Collector(self._plan, self._interrupts, self._progress)
        self._enter("Uploading", "all hosts have ended")
        lost: Exception | None = None
        try:
            for keeper in self._keepers:
                keeper.finish(hosts)
        except ShoalError as error:
            lost = ShoalError(str(error))
        try:
            collector.collect(hosts)
        except OSError as error:
            # Without its traceback: the frames in it keep the engine's half-read answer open, and the engine would
            # wait a minute for its end before it removes the host.
            lost = OSError(error.errno, error.strerror, error.filename)
        if lost is not None:
            raise lost
        if self._plan.output_uri is not None and not collector.given_up:
            self._progress.note(f"uploading to {self._plan.output_uri}")
        try:
            collector.upload(self._objects)
        except ShoalError as error:
            here = _shown(self._plan.run_folder / "output")
            self._progress.note(f"the results are in {here}, and not in S3: {error}")
            return self._not_uploaded(reason, ends, f"ClientError: the results could not be uploaded: {error}")
        return self._conclude(reason, ends, collector.given_up)

    def _conclude(self, reason: Reason | None, ends: list[HostEnd], given_up: bool) -> Result:
        failure = failure_reason(ends) if reason == "failed" else ""
        model = model_uri(self._plan, uploaded=not given_up)
        codes = {None: 0, "failed": 1, "max-runtime": MAX_RUNTIME_EXIT_CODE}
        code = self._interrupts.exit_code if given_up or reason == "interrupted" else codes[reason]
        return self._end(final_status(reason, given_up=given_up), failure, "" if given_up else model, ends, code)

    def _not_uploaded(self, reason: Reason | None, ends: list[HostEnd], why: str) -> Result:
        """Say that the job has failed because its results are not where they should be, unless it had failed itself."""
        model = model_uri(self._plan, uploaded=False)
        if reason == "failed":
            return self._end(("Failed", "Failed"), failure_reason(ends), model, ends, 1)
        return self._end(("Failed", "Failed"), why[:FAILURE_CHARACTERS], model, ends, _BROKEN_EXIT_CODE)

    def _end(self, status: tuple[str, str], failure: str, model: str, ends: list[HostEnd], exit_code: int) -> Result:
        if metrics := self._metrics.final():
            self._progress.note(", ".join(f"{each['MetricName']} {each['Value']:.5g}" for each in metrics))
        self._enter(status[1], failure.strip() or _shown_uri(model))
        return Result(self._description.write(status, failure, ends, model), exit_code)

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
        if stage in _IN_PROGRESS:
            self._description.write(("InProgress", stage))


_BEGINNING = {True: "from the checkpoints", False: "from nothing: there is no CheckpointConfig"}


def _hosts(count: int) -> str:
    return f"{count} host" if count == 1 else f"{count} hosts"


def _shown(path: Path) -> str:
    """Return a path as short as a user at this prompt needs it."""
    try:
        here = Path.cwd()
    except OSError:  # somebody has removed it since
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _shown_uri(uri: str) -> str:
    return _shown(Path(unquote(urlsplit(uri).path))) if uri.startswith(FILE_SCHEME) else uri


def _free_name(taken: Path) -> str:
    number = 2
    while (taken.parent / f"{taken.name}-{number}").exists():
        number += 1
    return f"{taken.name}-{number}"
