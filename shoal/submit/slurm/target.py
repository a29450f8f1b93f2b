"""`--to slurm`: the verbs, on a batch script, a run folder and Slurm's commands."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.job import spec
from shoal.job.spec import FILE_SCHEME, JobFile, Request
from shoal.submit import logs, portable
from shoal.submit.portable import Portable
from shoal.submit.slurm import folder, queue, status
from shoal.submit.slurm.script import CONTAINERS, Options, script
from shoal.submit.state import JobState
from shoal.submit.target import Submission

_BETWEEN_LOOKS_S = 1.0


class Slurm:
    """The cluster that Slurm's commands on this machine talk to."""

    def dry_run(self, submission: Submission) -> str:
        """Return the batch script."""
        return script(*_prepared(submission))

    def submit(self, submission: Submission) -> str:
        """Write the run folder and hand the script in."""
        job, options = _prepared(submission)
        with folder.made(options.run, job, script(job, options)) as file:
            number = queue.submit(file)
        return f"Slurm job {number}: {options.run}"

    def status(self, name: str) -> JobState:
        """Return how a job is."""
        return _state(name, _find(name))

    def logs(self, name: str, *, follow: bool) -> None:
        """Print what its hosts wrote; with `follow`, from its start to its end."""
        job = _find(name)
        found = folder.logs(job.run)
        while follow and len(found) < job.nodes and not status.is_over(self.status(name)):
            time.sleep(_BETWEEN_LOOKS_S)
            found = folder.logs(job.run)
        over = (lambda: status.is_over(self.status(name))) if follow else lambda: True
        logs.show({host: partial(_read, file, over) for host, file in found.items()}, live=follow)

    def stop(self, name: str, *, remove: bool) -> str:
        """Send SIGTERM to a job's hosts."""
        if remove:
            raise ShoalError("--remove: Slurm keeps its own records: remove the run folder by hand")
        job = _find(name)
        if status.is_over(_state(name, job)):
            return f"{name}: has ended already"
        folder.mark_stopped(job.run)
        queue.terminate(job)
        return f"{name}: asked to end; its scripts have SIGTERM and 110 s"


def _prepared(submission: Submission) -> tuple[Portable, Options]:
    job, request, extra = submission.job, submission.request, dict[str, Any](submission.extra)
    channels = {**_local_channels(job, request), **{name: _path(text) for name, text in submission.channels.items()}}
    spec.refuse(job.path, portable.refusals(request, channels))
    container = next((each for each in CONTAINERS if each == extra["container"]), None)
    if container is None:
        raise ShoalError(f"--container: {extra['container']!r} is not one of {', '.join(CONTAINERS)}")
    ready = portable.portable(job, request)
    if container == "none" and ready.entrypoint:
        raise ShoalError(
            "AlgorithmSpecification.ContainerEntrypoint: needs a container: --container pyxis or apptainer"
        )
    checkpoints = _checkpoints(job, request, submission.checkpoints)
    run = _output(job, request, submission.output) / ready.name
    return ready, Options(run, container, channels, checkpoints, tuple(extra["sbatch"]))


def _local_channels(job: JobFile, request: Request) -> dict[str, Path]:
    sources = {c["ChannelName"]: c["DataSource"].get("S3DataSource", {}) for c in request.get("InputDataConfig", [])}
    uris = {name: source.get("S3Uri", "") for name, source in sources.items()}
    return {name: job.local_path(uri) for name, uri in uris.items() if uri.startswith(FILE_SCHEME)}


def _output(job: JobFile, request: Request, given: str | None) -> Path:
    if given is not None:
        return _path(given)
    uri: str = request["OutputDataConfig"]["S3OutputPath"]
    if not uri.startswith(FILE_SCHEME):
        raise ShoalError(f"OutputDataConfig.S3OutputPath: {uri!r} is no folder of the nodes: give --output FOLDER")
    return job.local_path(uri)


def _checkpoints(job: JobFile, request: Request, given: str | None) -> Path | None:
    if given is not None:
        return _path(given)
    uri: str = request.get("CheckpointConfig", {}).get("S3Uri", "")
    return job.local_path(uri) if uri.startswith(FILE_SCHEME) else None


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _find(name: str) -> queue.QueuedJob:
    job = queue.find(name)
    if job is None:
        raise ShoalError(f"{name}: Slurm knows no such job of yours, or has forgotten it: its run folder has its logs")
    return job


def _state(name: str, job: queue.QueuedJob) -> JobState:
    return status.job_state(name, job, stopped=folder.was_stopped(job.run), failure=folder.failure(job.run))


def _read(file: Path, over: Callable[[], bool]) -> Iterator[bytes]:
    """Return what is in a file, and what comes, until the job is over."""
    with file.open("rb") as stream:
        while True:
            last_look = over()
            while chunk := stream.read(1 << 16):
                yield chunk
            if last_look:
                return
            time.sleep(_BETWEEN_LOOKS_S)
