"""From a valid request to what each host gets: names, `/opt/ml` files, environment, mounts, command. No effects.

The files and variables are those of the service (facts of real jobs): a script cannot tell the difference from them.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from shoal.job import profiler
from shoal.job.channels import S3_SCHEME, Channel, channels
from shoal.job.local import (
    DEFAULT_CHECKPOINTS,
    DEFAULT_TENSORBOARD,
    SUBMIT_DIRECTORY,
    instance_groups,
    submit_directory,
)
from shoal.job.objects import joined
from shoal.job.spec import FILE_SCHEME, JobFile, Request

ML = "/opt/ml"
CODE = f"{ML}/code"
DATA = f"{ML}/input/data"
RUNS = Path("runs")  # of jobs whose results go to S3
_BROUGHT = (FILE_SCHEME, S3_SCHEME)  # where code is that the container finds at CODE; it may be there already
NETWORK_INTERFACE = "eth0"  # what Docker calls a container's first interface
DEFAULT_MAX_RUNTIME_S = 86400  # the service's default


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine, seen read-only at `target`."""

    source: Path
    target: str


@dataclass(frozen=True)
class Host:
    """One container of the job."""

    name: str
    config: dict[str, str]  # file name in /opt/ml/input/config -> its text
    mounts: tuple[Mount, ...]


@dataclass(frozen=True)
class Kept:
    """A folder of the hosts that is kept elsewhere while they run."""

    what: str
    uri: str  # s3://..., or file:// and an absolute path
    local_path: str
    restored: bool  # every host begins with what is kept


@dataclass(frozen=True)
class Plan:
    """A job, ready to be run on this machine."""

    request: Request
    name: str
    arn: str
    image: str
    entrypoint: tuple[str, ...] | None  # None: the image's own
    command: tuple[str, ...]
    environment: dict[str, str]
    hosts: tuple[Host, ...]
    code: str | None  # s3:// and an archive, or file:// and a folder: what /opt/ml/code holds
    run_folder: Path
    output_uri: str | None  # s3://..., where results go as well; None: they are in the run folder alone
    output_key: str | None  # of KMS, to encrypt them with there
    max_runtime_s: int
    isolated: bool  # no way out of the job's network
    channels: tuple[Channel, ...]
    kept: tuple[Kept, ...]
    retries: int  # how often the job begins again after the engine has failed
    compressed: bool  # results are archives, not folders


def make_plan(job: JobFile, request: Request) -> Plan:
    """Return the plan for a request that `shoal.job.local.refusals` has nothing against."""
    algorithm, output = request["AlgorithmSpecification"], request["OutputDataConfig"]
    name = request["TrainingJobName"]
    groups = _groups(request)
    inputs = channels(job, request, [(group.name, group.hosts) for group in groups])
    arn = f"arn:aws:sagemaker:local:000000000000:training-job/{name}"
    directory = submit_directory(request)
    arguments = tuple(algorithm.get("ContainerArguments", ()))
    entrypoint = tuple(algorithm["ContainerEntrypoint"]) if "ContainerEntrypoint" in algorithm else None
    return Plan(
        request=request,
        name=name,
        arn=arn,
        image=algorithm["TrainingImage"],
        entrypoint=entrypoint,
        command=arguments or (() if entrypoint else ("train",)),
        environment={
            **profiler.environment(request),
            **request.get("Environment", {}),
            "TRAINING_JOB_NAME": name,
            "TRAINING_JOB_ARN": arn,
        },
        hosts=tuple(_host(job, request, name, group, groups, inputs) for group in groups for name in group.hosts),
        code=_uri(job, directory) if directory and directory.startswith(_BROUGHT) else None,
        run_folder=_runs(job, request) / name,
        output_uri=f"{output['S3OutputPath'].rstrip('/')}/{name}/output" if _is_s3(output) else None,
        output_key=output.get("KmsKeyId"),
        max_runtime_s=request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_S),
        isolated=request.get("EnableNetworkIsolation", False),
        channels=inputs,
        kept=_kept(job, request),
        retries=request.get("RetryStrategy", {}).get("MaximumRetryAttempts", 0),
        compressed=output.get("CompressionType", "GZIP") == "GZIP",
    )


def _is_s3(output: Request) -> bool:
    return str(output["S3OutputPath"]).startswith(S3_SCHEME)


def _runs(job: JobFile, request: Request) -> Path:
    """Return the folder of all runs: beside the job file if it says so, else where the user is."""
    output = request["OutputDataConfig"]
    return RUNS.resolve() if _is_s3(output) else job.local_path(output["S3OutputPath"])


def _kept(job: JobFile, request: Request) -> tuple[Kept, ...]:
    found = []
    if (config := request.get("CheckpointConfig")) is not None:
        found.append(Kept("checkpoints", _uri(job, config["S3Uri"]), _kept_path(config, DEFAULT_CHECKPOINTS), True))
    if (config := request.get("TensorBoardOutputConfig")) is not None:
        uri = joined(_uri(job, config["S3OutputPath"]), f"{request['TrainingJobName']}/tensorboard-output")
        found.append(Kept("TensorBoard's files", uri, _kept_path(config, DEFAULT_TENSORBOARD), False))
    return tuple(found)


def _uri(job: JobFile, uri: str) -> str:
    return job.local_path(uri).as_uri() if uri.startswith(FILE_SCHEME) else uri


def _kept_path(config: Request, default: str) -> str:
    return str(config.get("LocalPath", default)).rstrip("/")


@dataclass(frozen=True)
class _Group:
    name: str
    instance_type: str
    hosts: list[str]


def _groups(request: Request) -> list[_Group]:
    groups: list[_Group] = []  # hosts are numbered across the groups
    for name, instance_type, count in instance_groups(request):
        before = sum(len(group.hosts) for group in groups)
        groups.append(_Group(name, instance_type, [f"algo-{before + i + 1}" for i in range(count)]))
    return groups


def _host(
    job: JobFile, request: Request, name: str, group: _Group, groups: list[_Group], inputs: tuple[Channel, ...]
) -> Host:
    here = [channel for channel in inputs if name in channel.hosts]
    entries = {channel["ChannelName"]: channel for channel in request.get("InputDataConfig", [])}
    resources = {
        "current_group_name": group.name,
        "current_host": name,
        "current_instance_type": group.instance_type,
        "hosts": [host for each in groups for host in each.hosts],
        "instance_groups": [
            {"hosts": each.hosts, "instance_group_name": each.name, "instance_type": each.instance_type}
            for each in groups
        ],
        "network_interface_name": NETWORK_INTERFACE,
        "topology": None,
    }
    return Host(
        name=name,
        config={
            "hyperparameters.json": json.dumps(_hyperparameters(request)),
            "resourceconfig.json": json.dumps(resources),
            "inputdataconfig.json": json.dumps({c.name: _channel_entry(c, entries[c.name]) for c in here}),
            **_kept_files(request),
        },
        mounts=tuple(_mount(job, channel) for channel in here if channel.is_mounted),
    )


def _kept_files(request: Request) -> dict[str, str]:
    defaults = {"CheckpointConfig": DEFAULT_CHECKPOINTS, "TensorBoardOutputConfig": DEFAULT_TENSORBOARD}
    return {
        f"{field.lower()}.json": json.dumps({"LocalPath": request[field].get("LocalPath", default)})
        for field, default in defaults.items()
        if field in request
    }


def _hyperparameters(request: Request) -> dict[str, str]:
    """Return the hyperparameters as they are, but for where the code is: the container sees it at CODE."""
    parameters = dict(request.get("HyperParameters", {}))
    directory = submit_directory(request)
    if directory and directory.startswith(_BROUGHT):
        parameters[SUBMIT_DIRECTORY] = json.dumps(CODE)
    return parameters


def _channel_entry(channel: Channel, written: Request) -> dict[str, str]:
    entry = {"ContentType": written["ContentType"]} if "ContentType" in written else {}
    return {
        **entry,
        "TrainingInputMode": channel.mode,
        "S3DistributionType": "ShardedByS3Key" if channel.sharded else "FullyReplicated",
        "RecordWrapperType": written.get("RecordWrapperType", "None"),
    }


def _mount(job: JobFile, channel: Channel) -> Mount:
    source = job.local_path(channel.uri)
    target = f"{DATA}/{channel.name}"
    # A prefix that is one object arrives as one file in the channel's folder.
    return Mount(source, f"{target}/{source.name}" if source.is_file() else target)
