"""From a valid request to what each host gets: names, `/opt/ml` files, environment, mounts, command. No effects.

The files and variables are those of the service (facts of real jobs): a script cannot tell the difference from them.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from shoal.job.local import SUBMIT_DIRECTORY, input_mode, instance_groups, submit_directory
from shoal.job.spec import FILE_SCHEME, JobFile, Request

ML = "/opt/ml"
CODE = f"{ML}/code"
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
    code: Path | None  # the folder to copy to /opt/ml/code
    run_folder: Path
    max_runtime_s: int
    isolated: bool  # no way out of the job's network


def make_plan(job: JobFile, request: Request) -> Plan:
    """Return the plan for a request that `shoal.job.local.refusals` has nothing against."""
    algorithm = request["AlgorithmSpecification"]
    name = request["TrainingJobName"]
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
        environment={**request.get("Environment", {}), "TRAINING_JOB_NAME": name, "TRAINING_JOB_ARN": arn},
        hosts=_hosts(job, request),
        code=job.local_path(directory) if directory and directory.startswith(FILE_SCHEME) else None,
        run_folder=job.local_path(request["OutputDataConfig"]["S3OutputPath"]) / name,
        max_runtime_s=request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_S),
        isolated=request.get("EnableNetworkIsolation", False),
    )


def _hosts(job: JobFile, request: Request) -> tuple[Host, ...]:
    groups: list[_Group] = []  # hosts are numbered across the groups
    for name, instance_type, count in instance_groups(request):
        before = sum(len(group.hosts) for group in groups)
        groups.append(_Group(name, instance_type, [f"algo-{before + i + 1}" for i in range(count)]))
    return tuple(_host(job, request, name, group, groups) for group in groups for name in group.hosts)


@dataclass(frozen=True)
class _Group:
    name: str
    instance_type: str
    hosts: list[str]


def _host(job: JobFile, request: Request, name: str, group: _Group, groups: list[_Group]) -> Host:
    channels = [channel for channel in request.get("InputDataConfig", []) if _reaches(channel, group.name)]
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
            "inputdataconfig.json": json.dumps({c["ChannelName"]: _channel_entry(c, request) for c in channels}),
        },
        mounts=tuple(_mount(job, channel) for channel in channels),
    )


def _hyperparameters(request: Request) -> dict[str, str]:
    """Return the hyperparameters as they are, but for a folder of this machine: the container sees it at CODE."""
    parameters = dict(request.get("HyperParameters", {}))
    directory = submit_directory(request)
    if directory and directory.startswith(FILE_SCHEME):
        parameters[SUBMIT_DIRECTORY] = json.dumps(CODE)
    return parameters


def _reaches(channel: Request, group: str) -> bool:
    only = channel["DataSource"]["S3DataSource"].get("InstanceGroupNames")
    return not only or group in only


def _channel_entry(channel: Request, request: Request) -> dict[str, str]:
    entry = {"ContentType": channel["ContentType"]} if "ContentType" in channel else {}
    return {
        **entry,
        "TrainingInputMode": input_mode(channel, request["AlgorithmSpecification"]),
        "S3DistributionType": channel["DataSource"]["S3DataSource"].get("S3DataDistributionType", "FullyReplicated"),
        "RecordWrapperType": channel.get("RecordWrapperType", "None"),
    }


def _mount(job: JobFile, channel: Request) -> Mount:
    source = job.local_path(channel["DataSource"]["S3DataSource"]["S3Uri"])
    target = f"{ML}/input/data/{channel['ChannelName']}"
    # A prefix that is one object arrives as one file in the channel's folder.
    return Mount(source, f"{target}/{source.name}" if source.is_file() else target)
