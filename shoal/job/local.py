"""What a local run makes of a valid request: the folders given on the command line, what it refuses, what it ignores.

Pure functions; the file system is looked at in `missing_folders` alone.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from shoal.job.shape import Problem, show
from shoal.job.spec import FILE_SCHEME, JobFile, Request

SUBMIT_DIRECTORY = "sagemaker_submit_directory"
PROGRAM = "sagemaker_program"
COMMAND = "sagemaker_command"

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
}


def override(
    request: Request, *, name: str | None, output: Path | None, source: Path | None, channels: Mapping[str, Path]
) -> Request:
    """Return the request with what the command line says in place of what the file says."""
    request = copy.deepcopy(request)
    if name is not None:
        request["TrainingJobName"] = name
    if output is not None:
        request["OutputDataConfig"]["S3OutputPath"] = _uri(output)
    if source is not None:
        request.setdefault("HyperParameters", {})[SUBMIT_DIRECTORY] = json.dumps(_uri(source))
    for channel in request.get("InputDataConfig", []):
        if channel["ChannelName"] in channels:
            channel["DataSource"] = {
                "S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": _uri(channels[channel["ChannelName"]])}
            }
    return request


def refusals(request: Request, channels: Mapping[str, Path]) -> list[Problem]:
    """Return what in a valid request a local run cannot honour, and what on the command line has no place in it."""
    found = []
    algorithm = request.get("AlgorithmSpecification", {})
    if "TrainingImage" not in algorithm:
        found.append(
            Problem("AlgorithmSpecification.TrainingImage", "is needed to run here: an image of the local engine")
        )
    hosts = sum(count for _name, _type, count in instance_groups(request))
    declared = request.get("InputDataConfig", [])
    for index, channel in enumerate(declared):
        found += _channel_refusals(f"InputDataConfig[{index}]", channel, algorithm, hosts)
    for name in channels.keys() - {channel["ChannelName"] for channel in declared}:
        found.append(Problem("--channel", f"{show(name)} is not a channel of this job"))
    output = request["OutputDataConfig"]
    if not output["S3OutputPath"].startswith(FILE_SCHEME):
        found.append(
            Problem(
                "OutputDataConfig.S3OutputPath", f"{show(output['S3OutputPath'])} is not here: give --output FOLDER"
            )
        )
    if output.get("CompressionType", "GZIP") != "GZIP":
        found.append(Problem("OutputDataConfig.CompressionType", "a local run writes GZIP only"))
    directory = submit_directory(request)
    if directory is not None and not directory.startswith((FILE_SCHEME, "/")):
        found.append(
            Problem(f"HyperParameters.{SUBMIT_DIRECTORY}", f"{show(directory)} is not here: give --source FOLDER")
        )
    return found


def _channel_refusals(place: str, channel: Request, algorithm: Request, hosts: int) -> list[Problem]:
    source = channel["DataSource"].get("S3DataSource")
    if channel["ChannelName"] in (".", ".."):
        return [Problem(f"{place}.ChannelName", f"{show(channel['ChannelName'])} names no folder")]
    if source is None:
        return [
            Problem(
                f"{place}.DataSource",
                f"{', '.join(channel['DataSource'])} is not here: give --channel {channel['ChannelName']}=FOLDER",
            )
        ]
    found = []
    if not source["S3Uri"].startswith(FILE_SCHEME):
        found.append(
            Problem(
                f"{place}.DataSource.S3DataSource.S3Uri",
                f"{show(source['S3Uri'])} is not here: give --channel {channel['ChannelName']}=FOLDER",
            )
        )
    if source["S3DataType"] != "S3Prefix":
        found.append(
            Problem(
                f"{place}.DataSource.S3DataSource.S3DataType",
                f"{source['S3DataType']} cannot be run here, only S3Prefix",
            )
        )
    if source.get("S3DataDistributionType") == "ShardedByS3Key" and hosts > 1:
        found.append(
            Problem(
                f"{place}.DataSource.S3DataSource.S3DataDistributionType",
                "ShardedByS3Key cannot be run here on several hosts",
            )
        )
    if input_mode(channel, algorithm) == "Pipe":
        found.append(Problem(place, "Pipe mode cannot be run here: use File or FastFile"))
    if channel.get("CompressionType", "None") != "None":
        found.append(Problem(f"{place}.CompressionType", "compressed channels cannot be run here: unpack the folder"))
    return found


def missing_folders(job: JobFile, request: Request) -> list[Problem]:
    """Return the `file://` sources of a request that do not exist."""
    found = []
    for index, channel in enumerate(request.get("InputDataConfig", [])):
        path = job.local_path(channel["DataSource"]["S3DataSource"]["S3Uri"])
        if not path.exists():
            found.append(Problem(f"InputDataConfig[{index}] ({channel['ChannelName']})", f"there is no {path}"))
    directory = submit_directory(request)
    if directory is not None and directory.startswith(FILE_SCHEME):
        folder, program = job.local_path(directory), _decoded(request, PROGRAM)
        if not folder.is_dir():
            found.append(Problem(f"HyperParameters.{SUBMIT_DIRECTORY}", f"there is no folder {folder}"))
        elif program is not None and not _started_otherwise(request, program) and not (folder / program).is_file():
            found.append(Problem(f"HyperParameters.{PROGRAM}", f"there is no file {folder / program}"))
    return found


def _started_otherwise(request: Request, program: str) -> bool:
    """Whether the job starts a module, or a command instead of its program: neither need be a file of the folder."""
    commands = (request.get("HyperParameters", {}).get(COMMAND), request.get("Environment", {}).get("SHOAL_COMMAND"))
    return program.startswith("-m ") or any(commands)


def without_effect(request: Request) -> list[str]:
    """Return the fields of a request that a local run passes over."""
    fields = [name for name in request if name not in _HONOURED]
    if request.get("StoppingCondition", {}).keys() - {"MaxRuntimeInSeconds"}:
        fields += [
            f"StoppingCondition.{name}" for name in request["StoppingCondition"] if name != "MaxRuntimeInSeconds"
        ]
    return fields


def instance_groups(request: Request) -> list[tuple[str, str, int]]:
    """Return (group, instance type, number of hosts) for each instance group."""
    resources = request.get("ResourceConfig", {})
    if "InstanceGroups" in resources:
        return [(g["InstanceGroupName"], g["InstanceType"], g["InstanceCount"]) for g in resources["InstanceGroups"]]
    return [("homogeneousCluster", resources["InstanceType"], resources["InstanceCount"])]


def input_mode(channel: Request, algorithm: Request) -> str:
    """Return a channel's input mode: its own, or the job's."""
    return str(channel.get("InputMode") or algorithm["TrainingInputMode"])


def submit_directory(request: Request) -> str | None:
    """Return where the request says the script's folder is: bare as boto3 users write it, or JSON as the SDK does."""
    return _decoded(request, SUBMIT_DIRECTORY)


def _decoded(request: Request, parameter: str) -> str | None:
    value = request.get("HyperParameters", {}).get(parameter)
    if value is None:
        return None
    try:
        decoded = json.loads(value)
    except ValueError:
        return str(value)
    return decoded if isinstance(decoded, str) else str(value)


def _uri(path: Path) -> str:
    return FILE_SCHEME + quote(str(path.resolve()))
