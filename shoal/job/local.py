"""What a local run makes of a valid request: the folders given on the command line, what it refuses, what it ignores.

Pure functions; the file system is looked at in `override` and `missing_folders` alone.
"""

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from shoal.job import profiler
from shoal.job.channels import refusals as channel_refusals
from shoal.job.shape import Problem, show
from shoal.job.spec import FILE_SCHEME, JobFile, Request

SUBMIT_DIRECTORY = "sagemaker_submit_directory"
PROGRAM = "sagemaker_program"
COMMAND = "sagemaker_command"
SERVERLESS = "ServerlessJobConfig"
DEFAULT_CHECKPOINTS = "/opt/ml/checkpoints"
DEFAULT_TENSORBOARD = "/opt/ml/output/tensorboard"
# Not to be kept elsewhere, nor is any folder above them.
_TAKEN = ("/opt/ml/input", "/opt/ml/code", "/opt/ml/model", "/opt/ml/output/data", "/etc", "/usr", "/proc", "/dev")

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
    "TensorBoardOutputConfig",
    "RetryStrategy",
    "ProfilerConfig",
    "ProfilerRuleConfigurations",  # `shoal report` asks these rules
}
# The size of a volume has none either, but must be there.
_HONOURED_WITHIN = {
    "AlgorithmSpecification": {
        "TrainingImage",
        "TrainingInputMode",
        "MetricDefinitions",
        "ContainerEntrypoint",
        "ContainerArguments",
    },
    "ResourceConfig": {"InstanceType", "InstanceCount", "InstanceGroups", "VolumeSizeInGB"},
    "StoppingCondition": {"MaxRuntimeInSeconds"},
    "ProfilerConfig": profiler.HONOURED,
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
            channel["DataSource"] = {"S3DataSource": _here(channel, channels[channel["ChannelName"]])}
    return request


def _here(channel: Request, path: Path) -> Request:
    """Return a source of this machine in place of a channel's own. What else the file says of it stays."""
    source = dict(channel["DataSource"].get("S3DataSource", {}))
    is_manifest = path.is_file() and source.get("S3DataType") in ("ManifestFile", "AugmentedManifestFile")
    if not is_manifest:
        source.pop("AttributeNames", None)
        source["S3DataType"] = "S3Prefix"
    return {**source, "S3Uri": _uri(path)}


def refusals(request: Request, channels: Mapping[str, Path]) -> list[Problem]:
    """Return what in a valid request a local run cannot honour, and what on the command line has no place in it."""
    if SERVERLESS in request:
        return [Problem(SERVERLESS, "has no hosts and no image of its own: only the service can run such a job")]
    found = []
    algorithm = request.get("AlgorithmSpecification", {})
    if "TrainingImage" not in algorithm:
        found.append(
            Problem("AlgorithmSpecification.TrainingImage", "is needed to run here: an image of the local engine")
        )
    declared = request.get("InputDataConfig", [])
    found += channel_refusals(request)
    found += _no_expressions(algorithm)
    if "CheckpointConfig" in request:
        found += _kept_refusals("CheckpointConfig", "S3Uri", request, DEFAULT_CHECKPOINTS)
    if "TensorBoardOutputConfig" in request:
        found += _kept_refusals("TensorBoardOutputConfig", "S3OutputPath", request, DEFAULT_TENSORBOARD)
    for name in channels.keys() - {channel["ChannelName"] for channel in declared}:
        found.append(Problem("--channel", f"{show(name)} is not a channel of this job"))
    output = request["OutputDataConfig"]["S3OutputPath"]
    if not output.startswith((FILE_SCHEME, "s3://")):
        text = f"{show(output)} cannot be written: give s3://, file:// or --output"
        found.append(Problem("OutputDataConfig.S3OutputPath", text))
    directory = submit_directory(request)
    if directory is not None and not directory.startswith((FILE_SCHEME, "s3://", "/")):
        found.append(
            Problem(f"HyperParameters.{SUBMIT_DIRECTORY}", f"{show(directory)} is not here: give --source FOLDER")
        )
    return found


def _no_expressions(algorithm: Request) -> list[Problem]:
    found = []
    for index, metric in enumerate(algorithm.get("MetricDefinitions", [])):
        try:
            re.compile(metric["Regex"])
        except (re.error, OverflowError, RecursionError) as error:
            place = f"AlgorithmSpecification.MetricDefinitions[{index}].Regex"
            found.append(Problem(place, f"{show(metric['Regex'])} is no regular expression: {error}"))
    return found


def _kept_refusals(field: str, uri: str, request: Request, default: str) -> list[Problem]:
    found, config = [], request[field]
    if not config[uri].startswith((FILE_SCHEME, "s3://")):
        found.append(Problem(f"{field}.{uri}", f"{show(config[uri])} cannot be written: only s3:// and file:// can"))
    return found + kept_path_refusals(field, config.get("LocalPath", default), default)


def kept_path_refusals(field: str, local_path: str, default: str) -> list[Problem]:
    """Return what is against a folder of the hosts to be kept elsewhere."""
    path = PurePosixPath(local_path)
    taken = any(path == PurePosixPath(each) or path in PurePosixPath(each).parents for each in _TAKEN)
    below_input = PurePosixPath("/opt/ml/input") in path.parents
    if path.is_absolute() and ".." not in path.parts and not taken and not below_input:
        return []
    return [Problem(f"{field}.LocalPath", f"{show(str(path))} cannot be kept: the default is {default}")]


def missing_folders(job: JobFile, request: Request) -> list[Problem]:
    """Return the `file://` places of a request that do not exist, or that the engine cannot be told."""
    found = []
    output = request["OutputDataConfig"]["S3OutputPath"]
    if output.startswith(FILE_SCHEME):
        found += _no_text("OutputDataConfig.S3OutputPath", job.local_path(output))
    for index, channel in enumerate(request.get("InputDataConfig", [])):
        source = channel["DataSource"]["S3DataSource"]
        if not source["S3Uri"].startswith(FILE_SCHEME):
            continue
        path, place = job.local_path(source["S3Uri"]), f"InputDataConfig[{index}] ({channel['ChannelName']})"
        found += _no_text(place, path)
        if not path.exists():
            name = channel["ChannelName"]
            found.append(Problem(place, f"there is no {path}: put the data there, or say --channel {name}=FOLDER"))
        elif source["S3DataType"] != "S3Prefix" and not path.is_file():
            found.append(Problem(place, f"{path} is no file: {source['S3DataType']} needs one"))
    kept = request.get("CheckpointConfig", {}).get("S3Uri", "")
    if kept.startswith(FILE_SCHEME) and job.local_path(kept).exists() and not job.local_path(kept).is_dir():
        found.append(Problem("CheckpointConfig.S3Uri", f"{job.local_path(kept)} is no folder"))
    directory = submit_directory(request)
    if directory is not None and directory.startswith(FILE_SCHEME):
        folder, program = job.local_path(directory), _decoded(request, PROGRAM)
        if not folder.is_dir():
            found.append(Problem(f"HyperParameters.{SUBMIT_DIRECTORY}", f"there is no folder {folder}"))
        elif program is not None and not _started_otherwise(request, program) and not (folder / program).is_file():
            found.append(Problem(f"HyperParameters.{PROGRAM}", f"there is no file {folder / program}"))
    return found


def _no_text(place: str, path: Path) -> list[Problem]:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return [Problem(place, f"{show(str(path))} is not UTF-8: the engine takes no such path: give another name")]
    return []


def _started_otherwise(request: Request, program: str) -> bool:
    """Whether the job starts a module, or a command instead of its program: neither need be a file of the folder."""
    commands = (request.get("HyperParameters", {}).get(COMMAND), request.get("Environment", {}).get("SHOAL_COMMAND"))
    return program.startswith("-m ") or any(commands)


def without_effect(request: Request) -> list[str]:
    """Return the fields of a request that a local run passes over."""
    fields = [name for name in request if name not in _HONOURED]
    for field, honoured in _HONOURED_WITHIN.items():
        fields += [f"{field}.{name}" for name in request.get(field, {}) if name not in honoured]
    output = request.get("OutputDataConfig", {})
    if "KmsKeyId" in output and output["S3OutputPath"].startswith(FILE_SCHEME):
        fields.append("OutputDataConfig.KmsKeyId")
    return fields


def instance_groups(request: Request) -> list[tuple[str, str, int]]:
    """Return (group, instance type, number of hosts) for each instance group."""
    resources = request.get("ResourceConfig", {})
    if "InstanceGroups" in resources:
        return [(g["InstanceGroupName"], g["InstanceType"], g["InstanceCount"]) for g in resources["InstanceGroups"]]
    if "InstanceType" not in resources:  # a serverless job, as the service describes it
        return []
    return [("homogeneousCluster", resources["InstanceType"], resources["InstanceCount"])]


def submit_directory(request: Request) -> str | None:
    """Return where the request says the script's folder is: bare as boto3 users write it, or JSON as the SDK does."""
    return _decoded(request, SUBMIT_DIRECTORY)


def _decoded(request: Request, parameter: str) -> str | None:
    value = request.get("HyperParameters", {}).get(parameter)
    if value is None:
        return None
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return str(value)
    return decoded if isinstance(decoded, str) else str(value)


def _uri(path: Path) -> str:
    return FILE_SCHEME + quote(str(path.resolve()), errors="surrogateescape")
