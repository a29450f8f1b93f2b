"""The verbs `shoal run` and `shoal validate`: from the command line to the functions that do it."""

import difflib
import json
import math
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from shoal import console
from shoal.errors import ShoalError
from shoal.imports import without_collecting
from shoal.job import code, limits, local, spec, template
from shoal.job.limits import Limits
from shoal.job.objects import Objects
from shoal.job.plan import Plan, make_plan
from shoal.job.progress import Progress
from shoal.job.spec import JobFile
from shoal.job.survey import survey

JobFileArgument = Annotated[Path, typer.Argument(help="A CreateTrainingJob request, JSON or YAML.", metavar="JOB_FILE")]


def init(
    job_file: Annotated[Path, typer.Argument(help="Where to write it.", metavar="JOB_FILE")] = Path("job.yaml"),
    name: Annotated[str, typer.Option(help="TrainingJobName.")] = "first-job",
    image: Annotated[str, typer.Option(help="TrainingImage.")] = template.IMAGE,
    hosts: Annotated[int, typer.Option(help="InstanceCount.")] = 1,
) -> None:
    """Write a commented job file to begin from."""
    if job_file.suffix not in (".yaml", ".yml"):
        raise ShoalError(f"{job_file}: comments need YAML: give a name that ends in .yaml")
    text = template.job_file(name, image, hosts)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as draft:
        draft.write(text)
        draft.flush()
        try:
            spec.load(Path(draft.name))
        except ShoalError as error:
            raise ShoalError(str(error).replace(draft.name, "shoal init")) from error
    try:
        with job_file.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ShoalError(f"{job_file}: cannot be written: {error.strerror}: give another name") from error
    console.err.print(f"{job_file} written: change it, then `shoal validate {job_file}`", markup=False)


def schema() -> None:
    """Print the JSON schema of job files, for editors."""
    from shoal.job.schema import job_schema

    console.out.print(json.dumps(job_schema(), indent=2), markup=False)


def validate(
    job_file: JobFileArgument,
    show: Annotated[
        bool, typer.Option("--show", help="Print the request as it would be sent: JSON, `distribution` spelt out.")
    ] = False,
) -> None:
    """Check a job file against the service's own model: offline, every problem at once."""
    job = spec.load(job_file)
    if show:
        console.out.print(json.dumps(job.request, indent=2), markup=False)
        return
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
    endpoint_url: Annotated[str | None, typer.Option(help="Where S3 is.", metavar="URL")] = None,
    interrupt_after: Annotated[
        float | None, typer.Option(help="Interrupt the hosts after so many seconds, and start again.", min=0.1)
    ] = None,
    host_cpus: Annotated[str | None, typer.Option(help="Cores of each host.", metavar="NUMBER")] = None,
    host_memory: Annotated[str | None, typer.Option(help="Memory of each host.", metavar="SIZE")] = None,
    link_rate: Annotated[str | None, typer.Option(help="What each host can send.", metavar="RATE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final description on stdout.")] = False,
) -> None:
    """Run a training job on this machine: one container a host, results in a folder."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as it is for a command that a script puts in the background
        signal.signal(signal.SIGINT, _leave)  # until the job listens itself: nothing has been started or written
    # Imported here: `validate` needs no Docker SDK, and other verbs none of this.
    with without_collecting():
        from shoal import engine
        from shoal.job import docker_hosts
        from shoal.job.run import JobRun, Settings

    if interrupt_after is not None and not math.isfinite(interrupt_after):
        raise ShoalError(f"--interrupt-after {interrupt_after}: a number of seconds was expected, such as 30")
    progress = Progress(console.err)
    job, plan = _plan(job_file, job_name, channel or [], source, output, progress)
    settings = Settings(_limits(host_cpus, host_memory, link_rate), interrupt_after)
    objects = Objects(job.local_path, endpoint_url)
    inputs = survey(plan.channels, objects), objects
    code.check(plan.code, objects)
    if plan.output_uri is not None:
        objects.require_bucket(plan.output_uri)
    for folder in plan.kept:
        objects.under(folder.uri)  # told before anything is begun if it cannot be read
    client = engine.connect()
    docker_hosts.require_local(client)
    docker_hosts.require_image(client, plan.image, _similar)
    for gone in docker_hosts.sweep(client):
        progress.note(f"removed what a killed run of {gone} had left")
    if docker_hosts.is_running(client, plan.name):
        raise ShoalError(f"TrainingJobName: a job called {plan.name!r} is running: give another name with --job-name")
    result = JobRun(client, plan, inputs, progress, console.err if as_json else console.out, settings).go()
    if as_json:
        _print_json(result.description, plan)
    raise typer.Exit(result.exit_code)


def _print_json(description: dict[str, Any], plan: Plan) -> None:
    try:
        sys.stdout.write(json.dumps(description, indent=2) + "\n")
        sys.stdout.flush()
    except OSError as error:
        console.discard(sys.stdout)
        text = f"stdout: cannot be written: {error.strerror}: the description is in {plan.run_folder / 'job.json'}"
        raise ShoalError(text, exit_code=3) from error


def _limits(host_cpus: str | None, host_memory: str | None, link_rate: str | None) -> Limits:
    from shoal.job.link_rate import require_tc

    if link_rate is not None:
        require_tc()
    return Limits(
        None if host_cpus is None else limits.cpus(host_cpus, os.cpu_count() or 1),
        None if host_memory is None else limits.memory(host_memory),
        None if link_rate is None else limits.link_rate(link_rate),
    )


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _plan(
    job_file: Path, name: str | None, channels: list[str], source: Path | None, output: Path | None, progress: Progress
) -> tuple[JobFile, Plan]:
    """Return job file and plan, or raise everything that is wrong with file, options and the folders they name."""
    job = spec.load(job_file)
    folders = _folders(channels)
    request = local.override(job.request, name=name, output=output, source=source, channels=folders)
    spec.refuse(job_file, spec.problems(request))
    spec.refuse(job_file, local.refusals(request, folders))
    spec.refuse(job_file, local.missing_folders(job, request))
    idle = local.without_effect(request)
    if idle:
        progress.note(f"no effect here: {', '.join(idle)}")
    return job, make_plan(job, request)


def _folders(channels: list[str]) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for text in channels:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ShoalError(f"--channel {text!r}: write NAME=FOLDER")
        if name in folders:
            raise ShoalError(f"--channel {text!r}: {name} is given twice")
        folders[name] = Path(folder)
    return folders


def _similar(name: str, tags: list[str]) -> list[str]:
    """Return tags a user may have meant: of the same repository, or of nearly the same name."""
    repository = name.rpartition(":")[0] or name
    same = [tag for tag in tags if tag.rpartition(":")[0] == repository]
    return same[:3] or difflib.get_close_matches(name, tags, n=3)
