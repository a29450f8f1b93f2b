"""The verbs `shoal submit`, `status`, `logs` and `stop`: from the command line to the target that does it."""

import enum
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal import console
from shoal.errors import ShoalError
from shoal.job import local, spec
from shoal.submit import portable
from shoal.submit.state import EXIT_CODES
from shoal.submit.target import Submission, Target


class To(enum.StrEnum):
    """Where jobs can be sent."""

    SAGEMAKER = "sagemaker"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


ToOption = Annotated[To, typer.Option("--to", help="Where the job runs.")]
NameArgument = Annotated[str, typer.Argument(help="The job's TrainingJobName there.", metavar="NAME")]
ContextOption = Annotated[str | None, typer.Option(help="Kubernetes: a context of the kubeconfig.")]
NamespaceOption = Annotated[str | None, typer.Option(help="Kubernetes: the namespace; else the context's.")]


def submit(
    job_file: Annotated[Path, typer.Argument(help="A CreateTrainingJob request, JSON or YAML.", metavar="JOB_FILE")],
    to: ToOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent; send nothing.")] = False,
    job_name: Annotated[str | None, typer.Option(help="Use this name instead of TrainingJobName.")] = None,
    image: Annotated[str | None, typer.Option(help="Use this image instead of TrainingImage.")] = None,
    channel: Annotated[
        list[str] | None, typer.Option(help="Where a channel's data lies there.", metavar="NAME=PLACE")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Take the script from this folder.", metavar="FOLDER")] = None,
    output: Annotated[str | None, typer.Option(help="Where model and output go.", metavar="PLACE")] = None,
    checkpoints: Annotated[str | None, typer.Option(help="Where checkpoints are kept.", metavar="PLACE")] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    kind: Annotated[str, typer.Option(help="Kubernetes: Job, MPIJob, PyTorchJob or TrainJob.")] = "Job",
    limit: Annotated[
        list[str] | None,
        typer.Option(help="Kubernetes: what each host gets, as nvidia.com/gpu=8.", metavar="RESOURCE=QUANTITY"),
    ] = None,
    node_selector: Annotated[
        list[str] | None, typer.Option(help="Kubernetes: run on nodes with this label.", metavar="LABEL=VALUE")
    ] = None,
    service_account: Annotated[str | None, typer.Option(help="Kubernetes: the pods' service account.")] = None,
    pull_secret: Annotated[
        list[str] | None, typer.Option(help="Kubernetes: a secret to pull the image with.", metavar="NAME")
    ] = None,
    job_secret: Annotated[
        bool,
        typer.Option("--job-secret/--no-job-secret", help="Kubernetes: a Secret that hosts know each other by."),
    ] = True,
    network_policy: Annotated[
        bool, typer.Option("--network-policy", help="Kubernetes: only the job's pods reach the job's pods.")
    ] = False,
    runtime: Annotated[str, typer.Option(help="Kubernetes: the runtime of a TrainJob.")] = "torch-distributed",
    container: Annotated[str, typer.Option(help="Slurm: pyxis, apptainer or none.")] = "pyxis",
    sbatch: Annotated[
        list[str] | None, typer.Option(help="Slurm: one more option, as --sbatch=--partition=gpu.", metavar="OPTION")
    ] = None,
) -> None:
    """Send a training job to a cluster or the cloud; the script sees the same /opt/ml there."""
    job = spec.load(job_file)
    request = local.override(job.request, name=job_name, output=None, source=source, channels={})
    if image is not None:
        request.setdefault("AlgorithmSpecification", {})["TrainingImage"] = image
    spec.refuse(job_file, spec.problems(request))
    submission = Submission(
        job=job,
        request=request,
        channels=_pairs("--channel", channel, "NAME=PLACE"),
        output=output,
        checkpoints=checkpoints,
        extra={
            "kind": kind,
            "limit": _pairs("--limit", limit, "RESOURCE=QUANTITY"),
            "node_selector": _pairs("--node-selector", node_selector, "LABEL=VALUE"),
            "service_account": service_account,
            "pull_secret": pull_secret or [],
            "job_secret": job_secret,
            "network_policy": network_policy,
            "runtime": runtime,
            "container": container,
            "sbatch": sbatch or [],
        },
    )
    target = _target(to, context=context, namespace=namespace)
    if dry_run:
        text = target.dry_run(submission)
        _note_idle(to, submission)
        sys.stdout.write(text)
        return
    line = target.submit(submission)
    _note_idle(to, submission)
    console.out.print(line, markup=False)


def status(
    name: NameArgument,
    to: ToOption,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as DescribeTrainingJob would.")] = False,
) -> None:
    """Say how a submitted job is; exit code 1 if it has failed, 130 if it was stopped."""
    state = _target(to, context=context, namespace=namespace).status(name)
    if as_json:
        sys.stdout.write(json.dumps(state.as_json(), indent=2) + "\n")
    else:
        state.show()
    raise typer.Exit(EXIT_CODES[state.state])


def logs(
    name: NameArgument,
    to: ToOption,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the hosts have ended.")] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Print what the hosts of a submitted job wrote."""
    _target(to, context=context, namespace=namespace).logs(name, follow=follow)


def stop(
    name: NameArgument,
    to: ToOption,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the job and its record too.")] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Stop a submitted job with the grace of its script."""
    line = _target(to, context=context, namespace=namespace).stop(name, remove=remove)
    console.out.print(line, markup=False)


def _target(to: To, *, context: str | None, namespace: str | None) -> Target:
    """Return the target; the modules of the others are not imported."""
    if to is To.KUBERNETES:
        from shoal.submit.kubernetes.target import Kubernetes

        return Kubernetes(context, namespace)
    if to is To.SLURM:
        from shoal.submit.slurm.target import Slurm

        return Slurm()
    from shoal.submit.sagemaker.target import SageMaker

    return SageMaker()


def _pairs(option: str, given: list[str] | None, form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ShoalError(f"{option} {text!r}: write {form}")
        if name in pairs:
            raise ShoalError(f"{option} {text!r}: {name} is given twice")
        pairs[name] = value
    return pairs


def _note_idle(to: To, submission: Submission) -> None:
    if to is To.SAGEMAKER:
        return
    idle = portable.without_effect(submission.request)
    kept = submission.request.get("CheckpointConfig", {}).get("S3Uri", "")
    has_folder = to is To.SLURM and kept.startswith(spec.FILE_SCHEME)
    if kept and submission.checkpoints is None and not has_folder:
        idle.append("CheckpointConfig (to keep checkpoints, give --checkpoints PLACE)")
    if idle:
        console.err.print(f"no effect there: {', '.join(idle)}", markup=False)
