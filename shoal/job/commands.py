"""The verbs `shoal run` and `shoal validate`: from the command line to the functions that do it."""

import difflib
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from shoal import console, engine
from shoal.errors import ShoalError
from shoal.job import local, spec
from shoal.job.plan import Plan, make_plan
from shoal.job.progress import Progress

JobFileArgument = Annotated[Path, typer.Argument(help="A CreateTrainingJob request, JSON or YAML.", metavar="JOB_FILE")]


def validate(job_file: JobFileArgument) -> None:
    """Check a job file against the service's own model: offline, every problem at once."""
    job = spec.load(job_file)
    console.out.print(f"{job_file}: a valid CreateTrainingJob request", markup=False)
    uris = spec.file_uris(job.request)
    if uris:
        console.out.print(f"{job_file}: before submitting it, change file:// in {', '.join(uris)}", markup=False)


def run(
    job_file: JobFileArgument,
    job_name: Annotated[str | None, typer.Option(help="Use this name instead of TrainingJobName.")] = None,
    channel: Annotated[
        list[str] | None, typer.Option(help="Read this channel from a folder here.", metavar="NAME=FOLDER")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Take the script from this folder.", metavar="FOLDER")] = None,
    output: Annotated[Path | None, typer.Option(help="Put the run below this folder.", metavar="FOLDER")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final description on stdout.")] = False,
) -> None:
    """Run a training job on this machine: one container a host, results in a folder."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as it is for a command that a script puts in the background
        signal.signal(signal.SIGINT, _leave)  # until the job listens itself: nothing has been started or written
    # Imported here: `validate` needs no Docker SDK, and other verbs none of this.
    from shoal.job import docker_hosts
    from shoal.job.run import JobRun

    progress = Progress(console.err)
    plan = _plan(job_file, job_name, channel or [], source, output, progress)
    client = engine.connect()
    docker_hosts.require_local(client)
    docker_hosts.require_image(client, plan.image, _similar)
    for gone in docker_hosts.sweep(client):
        progress.note(f"removed what a killed run of {gone} had left")
    if docker_hosts.is_running(client, plan.name):
        raise ShoalError(f"TrainingJobName: a job called {plan.name!r} is running: give another name with --job-name")
    result = JobRun(client, plan, progress, console.err if as_json else console.out).go()
    if as_json:
        sys.stdout.write(json.dumps(result.description, indent=2) + "\n")
    raise typer.Exit(result.exit_code)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _plan(
    job_file: Path, name: str | None, channels: list[str], source: Path | None, output: Path | None, progress: Progress
) -> Plan:
    """Return the plan, or raise everything that is wrong with the file, the options and the folders they name."""
    job = spec.load(job_file)
    folders = _folders(channels)
    request = local.override(job.request, name=name, output=output, source=source, channels=folders)
    spec.refuse(job_file, spec.problems(request))
    spec.refuse(job_file, local.refusals(request, folders))
    spec.refuse(job_file, local.missing_folders(job, request))
    idle = local.without_effect(request)
    if idle:
        progress.note(f"no effect here: {', '.join(idle)}")
    return make_plan(job, request)


def _folders(channels: list[str]) -> dict[str, Path]:
    folders = {}
    for text in channels:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ShoalError(f"--channel {text!r}: write NAME=FOLDER")
        folders[name] = Path(folder)
    return folders


def _similar(name: str, tags: list[str]) -> list[str]:
    """Return tags a user may have meant: of the same repository, or of nearly the same name."""
    repository = name.rpartition(":")[0] or name
    same = [tag for tag in tags if tag.rpartition(":")[0] == repository]
    return same[:3] or difflib.get_close_matches(name, tags, n=3)
