"""The life of one job: `shoal run` runs it, its results go to S3. One thread a job.

Every step is noted in the store before it is taken, so that a server that begins with a half-done job knows where to
go on: a living `shoal run` is followed, results are uploaded again.
"""

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from shoal import engine
from shoal.errors import ShoalError
from shoal.job import abandoned, docker_hosts
from shoal.job.objects import Objects
from shoal.job.upload import upload
from shoal.serve import process
from shoal.serve.log_events import LogEvents
from shoal.serve.process import RunProcess
from shoal.serve.store import Job, Store
from shoal.serve.view import FINAL

_POLL_S = 0.3  # how late a stage, a line or a wish to stop is noticed


class Life:
    """One job, from wherever it stands to its end."""

    def __init__(self, store: Store, name: str, folder: Path, objects: Objects, environment: Mapping[str, str]) -> None:
        self._store, self._name, self._folder, self._environment = store, name, folder, environment
        self._objects = objects
        self._job_file = folder / "job.json"
        self._errors = folder / "shoal-run.log"
        self._run_folder = folder / "runs" / name
        self._noted = ""  # what `shoal run` said of the job when it was last taken over

    def live(self) -> None:
        """Bring the job to its end, unless the server ends first."""
        job = self._now
        if job.phase == "queued" and (job.stop or not self._begin()):
            self.stopped()
            return
        if self._now.phase == "running" and not self._run():
            return
        self._upload()

    def stopped(self) -> None:
        """Note the end of a job that was stopped before anything was started."""
        self._end("Stopped", "Stopped", "Stopped before the hosts were started")

    def broken(self, error: Exception) -> None:
        """Note that the server itself cannot go on with a job: a bug, a full disk. A run of it is ended first."""
        running = process.find(self._job_file)
        if running is not None:
            with contextlib.closing(running):
                running.terminate()
                while not running.wait(_POLL_S):  # it gives its hosts 120 s, and then ends them
                    pass
        if self._now.phase != "ended":
            why = " ".join(f"{type(error).__name__}: {error}".split())
            self._end("Failed", "Failed", "The endpoint failed", f"InternalServerError: {why}")

    @property
    def _now(self) -> Job:
        job = self._store.get(self._name)
        assert job is not None
        return job

    def _begin(self) -> bool:
        """Write the job file; return whether the job is still wanted."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._job_file.write_text(json.dumps(self._now.request, indent=2) + "\n")
        # A wish to stop that came before this is obeyed here; one that comes after it, by the process.
        return self._store.change(self._name, lambda job: {} if job.stop else {"phase": "running"}).phase == "running"

    def _run(self) -> bool:
        """Follow the job's `shoal run` to its end; return whether there are results to upload."""
        running = process.find(self._job_file)
        # Also where an earlier server's run was refused, or killed, before it began: what it needed may be there now.
        if running is None and not self._run_folder.exists():
            options = ["--output", str(self._run_folder.parent)]
            running = process.start(self._job_file, options, self._environment, self._errors)
        logs = LogEvents(self._store, self._now, self._run_folder / "logs")
        if running is not None:
            with contextlib.closing(running):
                self._follow(running, logs)
        self._note_run()
        logs.collect(ended=True)
        return self._settle()

    def _follow(self, running: RunProcess, logs: LogEvents) -> None:
        while not running.wait(_POLL_S):
            if self._now.stop == "wanted":
                running.terminate()  # once: said again it would kill the hosts
                self._store.change(self._name, lambda _job: {"stop": "sent"})
            self._note_run()
            logs.collect()

    def _note_run(self) -> None:
        """Take over what `shoal run` says of the job, if it says something new."""
        with contextlib.suppress(FileNotFoundError):
            text = (self._run_folder / "job.json").read_text()
            if text != self._noted:
                run = json.loads(text)
                self._store.change(self._name, lambda _job: {"run": run})
                self._noted = text

    def _settle(self) -> bool:
        """Decide how a run ended; return whether there are results to upload."""
        job = self._now
        if job.run.get("TrainingJobStatus") in FINAL:
            self._store.change(self._name, lambda _job: {"phase": "uploading"})
            return True
        if not job.run and job.stop:
            self.stopped()
            return False
        _remove_leftovers()
        said = self._errors.read_text(errors="replace").strip() if self._errors.exists() else ""
        if not job.run and said:
            # Refused before anything was started: what is wrong is the request, or the machine.
            self._end("Failed", "Failed", "The job could not be started", f"ClientError: {_last_words(said)}")
        else:
            self._end("Failed", "Failed", "The run was lost", abandoned.LOST)
        return False

    def _upload(self) -> None:
        job = self._now
        if job.phase != "uploading":
            return
        config = job.request["OutputDataConfig"]
        output = f"{config['S3OutputPath'].rstrip('/')}/{job.name}/output"
        try:
            upload(self._objects, self._run_folder / "output", output, config.get("KmsKeyId"))
        except (ShoalError, OSError) as error:
            self._end("Failed", "Failed", "The results could not be uploaded", f"ClientError: {error}")
            return
        name = next((name for name in ("model.tar.gz", "model") if (self._run_folder / "output" / name).exists()), "")
        model = f"{output}/{name}" if name else ""
        run = job.run
        self._end(
            run["TrainingJobStatus"],
            run["SecondaryStatus"],
            run.get("FailureReason") or f"The results are at {output}",
            run.get("FailureReason", ""),
            model,
        )

    def _end(self, status: str, secondary: str, message: str, reason: str = "", model: str = "") -> None:
        self._store.change(
            self._name,
            lambda job: {
                "phase": "ended",
                "status": status,
                "secondary": secondary,
                "stages": job.entered(secondary, message),
                "reason": reason[:1024],
                "model": model,
            },
        )


def _last_words(said: str) -> str:
    """Return what `shoal run` said last: the line that begins with its name, and what follows."""
    return said.rpartition("shoal: ")[2]


def _remove_leftovers() -> None:
    """Remove the containers of a `shoal run` that was killed."""
    with contextlib.suppress(ShoalError):
        client = engine.connect()
        with contextlib.closing(client):
            docker_hosts.sweep(client)
