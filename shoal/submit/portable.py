"""From a valid request to what any cluster must give each host: names, files, environment, command. No effects.

`shoal.job.plan` does the same for hosts of this machine, which it can name; a cluster names its own, and `train` in
the container finds out (docs/train.md, hosts without a file).
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ShoalError
from shoal.job import profiler
from shoal.job.channels import input_mode
from shoal.job.local import (
    DEFAULT_CHECKPOINTS,
    SERVERLESS,
    SUBMIT_DIRECTORY,
    instance_groups,
    kept_path_refusals,
    submit_directory,
)
from shoal.job.plan import DEFAULT_MAX_RUNTIME_S
from shoal.job.shape import Problem, show
from shoal.job.spec import FILE_SCHEME, JobFile, Request

# Everything else in a request is named in a note and passed over.
_HONOURED = {
    "TrainingJobName",
    "HyperParameters",
    "AlgorithmSpecification",
    "RoleArn",
    "InputDataConfig",
    "OutputDataConfig",
    "ResourceConfig",
    "StoppingCondition",
    "EnableNetworkIsolation",
    "Environment",
    "CheckpointConfig",
    "ProfilerConfig",
    "ProfilerRuleConfigurations",  # `shoal report` asks these rules
}


JOB_SECRET, JOB_SECRET_FILE = "SHOAL_JOB_SECRET", "SHOAL_JOB_SECRET_FILE"  # where `train` looks for it


@dataclass(frozen=True)
class Portable:
    """A job, the same for every host."""

    name: str
    image: str
    entrypoint: tuple[str, ...]  # empty: the image's own
    arguments: tuple[str, ...]
    environment: dict[str, str]
    hyperparameters: dict[str, str]
    inputs: dict[str, dict[str, str]]  # channel -> its entry in inputdataconfig.json
    code: Path | None  # a folder of this machine that the hosts must get
    hosts: int
    max_runtime_s: int
    checkpoints: str  # where in the container they lie

    @property
    def has_secret(self) -> bool:
        """Whether the job file itself says what the job's secret is."""
        return JOB_SECRET in self.environment or JOB_SECRET_FILE in self.environment

    def config(self, code: str) -> dict[str, str]:
        """Return file name in /opt/ml/input/config -> its text, for hosts that find the script's folder at `code`."""
        parameters = dict(self.hyperparameters)
        if self.code is not None:
            parameters[SUBMIT_DIRECTORY] = json.dumps(code)
        return {"hyperparameters.json": json.dumps(parameters), "inputdataconfig.json": json.dumps(self.inputs)}


def portable(job: JobFile, request: Request) -> Portable:
    """Return the job of a request that `refusals` has nothing against."""
    algorithm = request["AlgorithmSpecification"]
    entrypoint, arguments = algorithm.get("ContainerEntrypoint", ()), algorithm.get("ContainerArguments", ())
    directory = submit_directory(request)
    return Portable(
        name=request["TrainingJobName"],
        image=algorithm["TrainingImage"],
        entrypoint=tuple(entrypoint),
        arguments=tuple(arguments or (() if entrypoint else ("train",))),
        environment={
            **profiler.environment(request),
            **request.get("Environment", {}),
            "TRAINING_JOB_NAME": request["TrainingJobName"],
        },
        hyperparameters=request.get("HyperParameters", {}),
        inputs={channel["ChannelName"]: _entry(channel, algorithm) for channel in request.get("InputDataConfig", [])},
        code=_folder(job, directory) if directory and directory.startswith(FILE_SCHEME) else None,
        hosts=sum(count for _name, _type, count in instance_groups(request)),
        max_runtime_s=request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_S),
        checkpoints=request.get("CheckpointConfig", {}).get("LocalPath", DEFAULT_CHECKPOINTS),
    )


def refusals(request: Request, placed: Collection[str]) -> list[Problem]:
    """Return what in a valid request a cluster cannot honour, with a place given for each channel in `placed`."""
    if SERVERLESS in request:
        return [Problem(SERVERLESS, "has no hosts and no image of its own: only SageMaker can run such a job")]
    found = []
    algorithm = request.get("AlgorithmSpecification", {})
    if "TrainingImage" not in algorithm:
        found.append(Problem("AlgorithmSpecification.TrainingImage", "is needed: an image that the hosts can pull"))
    groups = request.get("ResourceConfig", {}).get("InstanceGroups", [])
    if len(groups) > 1:
        found.append(Problem("ResourceConfig.InstanceGroups", f"there are {len(groups)}: only one kind of host can be"))
    declared = [channel["ChannelName"] for channel in request.get("InputDataConfig", [])]
    for index, channel in enumerate(request.get("InputDataConfig", [])):
        place, name = f"InputDataConfig[{index}]", channel["ChannelName"]
        if name in (".", ".."):
            found.append(Problem(f"{place}.ChannelName", f"{show(name)} names no folder"))
        if name not in placed:
            found.append(
                Problem(place, f"channel {show(name)} is not where the hosts are: give --channel {name}=PLACE")
            )
        if input_mode(channel, algorithm) == "Pipe":
            found.append(Problem(place, "Pipe mode needs SageMaker: use File or FastFile"))
        found += _selections(place, channel, request)
    for name in sorted(set(placed) - set(declared)):
        found.append(Problem("--channel", f"{show(name)} is not a channel of this job"))
    if (path := request.get("CheckpointConfig", {}).get("LocalPath")) is not None:
        found += kept_path_refusals("CheckpointConfig", path, DEFAULT_CHECKPOINTS)
    if request.get("EnableNetworkIsolation"):
        found.append(
            Problem(
                "EnableNetworkIsolation", "cannot be promised there: leave it out, and let the cluster isolate jobs"
            )
        )
    return found


def _selections(place: str, channel: Request, request: Request) -> list[Problem]:
    """Return what of a channel would be a part of the folder that every host is given whole."""
    found, source = [], channel["DataSource"].get("S3DataSource", {})
    data_type = source.get("S3DataType", "S3Prefix")
    if data_type != "S3Prefix":
        found.append(Problem(f"{place}.S3DataType", f"{data_type} needs SageMaker: hosts are given a whole folder"))
    hosts = sum(count for _name, _type, count in instance_groups(request))
    if source.get("S3DataDistributionType") == "ShardedByS3Key" and hosts > 1:
        what = "ShardedByS3Key needs SageMaker: let the script choose by SM_CURRENT_HOST"
        found.append(Problem(f"{place}.S3DataDistributionType", what))
    return found


def without_effect(request: Request) -> list[str]:
    """Return the fields of a request that a cluster passes over."""
    fields = [name for name in request if name not in _HONOURED]
    stopping = request.get("StoppingCondition", {}).keys() - {"MaxRuntimeInSeconds"}
    profiling = request.get("ProfilerConfig", {}).keys() - profiler.HONOURED
    fields += [f"StoppingCondition.{name}" for name in sorted(stopping)]
    return fields + [f"ProfilerConfig.{name}" for name in sorted(profiling)]


def _entry(channel: Request, algorithm: Request) -> dict[str, str]:
    entry = {"ContentType": channel["ContentType"]} if "ContentType" in channel else {}
    return {
        **entry,
        "TrainingInputMode": input_mode(channel, algorithm),
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": channel.get("RecordWrapperType", "None"),
    }


def _folder(job: JobFile, uri: str) -> Path:
    folder = job.local_path(uri)
    if not folder.is_dir():
        raise ShoalError(f"{job.path}: HyperParameters.{SUBMIT_DIRECTORY}: there is no folder {folder}")
    return folder
