"""The job file: load it, and hold it against the service's own model of CreateTrainingJob. Offline, no credentials.

Where a job file may differ from what the service takes is listed in `_is_local_uri`: `file://` where the model wants
`s3://`. Everything else is the model's word. What a local run cannot honour is decided in `shoal.job.local`.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from shoal.errors import ShoalError
from shoal.imports import without_collecting
from shoal.job import distribution
from shoal.job.parse import parse
from shoal.job.shape import Problem, Rules, check, show

Request = dict[str, Any]

FILE_SCHEME = "file://"
_LONGEST_RUN_S = 28 * 24 * 3600  # the service's
_PROFILING_INTERVALS = (100, 200, 500, 1000, 5000, 60000)
_SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class JobFile:
    """A valid request and the file it came from."""

    path: Path
    request: Request

    def local_path(self, uri: str) -> Path:
        """Return the path a `file://` URI names; a relative one starts at the job file's folder."""
        try:
            path = (self.path.parent / unquote(uri.removeprefix(FILE_SCHEME), errors="surrogateescape")).resolve()
            path.exists()
        except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a zero byte
            raise ShoalError(f"{self.path}: {show(uri)} is no path of this machine: {error}") from error
        return path


def load(path: Path) -> JobFile:
    """Read and check a job file.

    Raises:
        ShoalError: it cannot be read, or the service would refuse it; one line for each problem.
    """
    request = parse(path)
    short = request.pop(distribution.FIELD, None)
    found = problems(request)
    if short is not None:
        found += distribution.form_problems(short) if found else distribution.problems(short, request)
    refuse(path, found)
    if short is not None:
        request.setdefault("HyperParameters", {}).update(distribution.hyperparameters(short, request))
        refuse(path, problems(request))
    return JobFile(path.resolve(), request)


def refuse(path: Path, found: list[Problem]) -> None:
    """Raise one error that lists the problems of a job file, if there are any, a line each; of very many the first."""
    if found:
        lines = [f"{path}: {problem}" for problem in found[:_SHOWN_PROBLEMS]]
        if more := len(found) - _SHOWN_PROBLEMS:
            lines += [f"{path}: and {more} more like these"] if more > 0 else []
        raise ShoalError("\n".join(lines))


def problems(request: Request) -> list[Problem]:
    """Return everything the service would have against a request, as far as its model and its documentation say."""
    found = check(operation_shape("CreateTrainingJob", "input"), request, RULES)
    return found or _rules(request)


def file_uris(value: object, path: str = "") -> list[str]:
    """Return where in a request `file://` stands: the places to change before it is submitted."""
    if isinstance(value, dict):
        return [place for key, item in value.items() for place in file_uris(item, f"{path}.{key}" if path else key)]
    if isinstance(value, list):
        return [place for index, item in enumerate(value) for place in file_uris(item, f"{path}[{index}]")]
    return [path] if isinstance(value, str) and value.strip('"').startswith(FILE_SCHEME) else []


@functools.cache
def operation_shape(operation: str, direction: str) -> Any:
    """Return the shape of a SageMaker operation's `input` or `output` from the model botocore ships."""
    # Imported here: botocore takes a tenth of a second, and other verbs do not need it.
    with without_collecting():
        from botocore.loaders import Loader
        from botocore.model import ServiceModel

        model = ServiceModel(Loader(include_default_search_paths=True).load_service_model("sagemaker", "service-2"))
    return getattr(model.operation_model(operation), f"{direction}_shape")


def _is_local_uri(shape: Any, value: object) -> bool:
    return shape.name == "S3Uri" and isinstance(value, str) and value.startswith(FILE_SCHEME) and len(value) <= 1024


# The model's own minimum of a number of instances, and of groups of them, is 0.
RULES = Rules(allowed=_is_local_uri, minima={"TrainingInstanceCount": 1, "InstanceGroups": 1})


def _rules(request: Request) -> list[Problem]:
    """The rules the service enforces and its model does not state. Only for a request the model accepts."""
    found = []
    algorithm = request.get("AlgorithmSpecification", {})
    resources = request.get("ResourceConfig", {})
    if "ServerlessJobConfig" not in request:
        if ("TrainingImage" in algorithm) == ("AlgorithmName" in algorithm):
            found.append(Problem("AlgorithmSpecification", "needs TrainingImage or AlgorithmName, and not both"))
        if "InstanceGroups" in resources:
            if "InstanceType" in resources or "InstanceCount" in resources:
                found.append(Problem("ResourceConfig", "has both InstanceGroups and InstanceType or InstanceCount"))
        elif not ("InstanceType" in resources and "InstanceCount" in resources):
            found.append(Problem("ResourceConfig", "needs InstanceType and InstanceCount, or InstanceGroups"))
        if "StoppingCondition" not in request:
            found.append(Problem("StoppingCondition", 'is required and missing: {"MaxRuntimeInSeconds": 86400}'))
    found += _too_long(request)
    found += _spot(request)
    found += _warm_pool(request)
    found += _profiling(request)
    found += _zero_bytes(request)
    return found + _names(request)


def _names(request: Request) -> list[Problem]:
    """What has to have a name of its own, and names that must be there."""
    found = []
    groups = [group["InstanceGroupName"] for group in request.get("ResourceConfig", {}).get("InstanceGroups", [])]
    for index, group in enumerate(groups):
        if group in groups[:index]:
            place = f"ResourceConfig.InstanceGroups[{index}].InstanceGroupName"
            found.append(Problem(place, f"{show(group)} is there twice"))
    channels = [channel["ChannelName"] for channel in request.get("InputDataConfig", [])]
    for index, channel in enumerate(request.get("InputDataConfig", [])):
        place = f"InputDataConfig[{index}]"
        if channel["ChannelName"] in channels[:index]:
            found.append(Problem(f"{place}.ChannelName", f"{show(channel['ChannelName'])} is there twice"))
        if len(channel["DataSource"]) != 1:
            found.append(Problem(f"{place}.DataSource", "needs exactly one source, such as S3DataSource"))
        for name in channel["DataSource"].get("S3DataSource", {}).get("InstanceGroupNames", []):
            if name not in groups:
                known = ", ".join(groups) or "none"
                path = f"{place}.DataSource.S3DataSource.InstanceGroupNames"
                found.append(Problem(path, f"{show(name)} is no group of ResourceConfig.InstanceGroups: {known}"))
    return found


def _too_long(request: Request) -> list[Problem]:
    seconds = request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", 0)
    if seconds <= _LONGEST_RUN_S:
        return []
    return [Problem("StoppingCondition.MaxRuntimeInSeconds", f"{seconds} is more than {_LONGEST_RUN_S}")]


def _spot(request: Request) -> list[Problem]:
    if not request.get("EnableManagedSpotTraining"):
        return []
    stopping = request.get("StoppingCondition", {})
    run, wait = stopping.get("MaxRuntimeInSeconds", 86400), stopping.get("MaxWaitTimeInSeconds")
    place = "StoppingCondition.MaxWaitTimeInSeconds"
    if wait is None:
        return [Problem(place, f"is missing: EnableManagedSpotTraining needs it, at least {run}")]
    return [Problem(place, f"{wait} is less than MaxRuntimeInSeconds, {run}")] if wait < run else []


def _warm_pool(request: Request) -> list[Problem]:
    resources, place = request.get("ResourceConfig", {}), "ResourceConfig.KeepAlivePeriodInSeconds"
    if not resources.get("KeepAlivePeriodInSeconds"):
        return []
    spot = request.get("EnableManagedSpotTraining")
    others = [("EnableManagedSpotTraining", spot), ("ResourceConfig.InstanceGroups", "InstanceGroups" in resources)]
    return [Problem(place, f"does not go with {other}: keep one") for other, is_there in others if is_there]


def _profiling(request: Request) -> list[Problem]:
    interval = request.get("ProfilerConfig", {}).get("ProfilingIntervalInMilliseconds")
    if interval is None or interval in _PROFILING_INTERVALS:
        return []
    place, known = "ProfilerConfig.ProfilingIntervalInMilliseconds", ", ".join(map(str, _PROFILING_INTERVALS))
    return [Problem(place, f"{interval} is not one of {known}")]


def _zero_bytes(request: Request) -> list[Problem]:
    """No variable and no argument of a process can hold a zero byte."""
    algorithm = request.get("AlgorithmSpecification", {})
    texts = [(f"Environment.{name}", value) for name, value in request.get("Environment", {}).items()]
    for name in ("ContainerEntrypoint", "ContainerArguments"):
        texts += [(f"AlgorithmSpecification.{name}[{i}]", word) for i, word in enumerate(algorithm.get(name, []))]
    return [Problem(place, f"{show(text)} has a zero byte") for place, text in texts if "\0" in text]
