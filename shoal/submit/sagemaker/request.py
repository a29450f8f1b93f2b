"""From a job file to the request that SageMaker gets: no folder of this machine is left in it. Pure functions."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shoal.errors import ShoalError
from shoal.job import profiler, spec
from shoal.job.local import SUBMIT_DIRECTORY, submit_directory
from shoal.job.shape import Problem
from shoal.job.spec import FILE_SCHEME, JobFile, Request
from shoal.submit.source import ARCHIVE
from shoal.submit.target import Submission

_CODE_CHANNEL = "code"  # as the SDK calls it


@dataclass(frozen=True)
class Upload:
    """A folder of this machine that must be in S3, packed, before the job begins."""

    folder: Path
    bucket: str
    key: str

    @property
    def uri(self) -> str:
        """Where it will be."""
        return f"s3://{self.bucket}/{self.key}"


def prepare(submission: Submission, region: str) -> tuple[Request, Upload | None]:
    """Return the request, and what must be uploaded for it.

    Raises:
        ShoalError: the service would refuse it, or it names a place that is not in S3.
    """
    job, request = submission.job, copy.deepcopy(submission.request)
    if submission.output is not None:
        request["OutputDataConfig"]["S3OutputPath"] = _s3("--output", submission.output)
    if submission.checkpoints is not None:
        request.setdefault("CheckpointConfig", {})["S3Uri"] = _s3("--checkpoints", submission.checkpoints)
    _place_channels(job, request, submission.channels)
    if variables := profiler.environment(request):
        request.setdefault("Environment", {}).update(variables)
    upload = _upload(job, request, region)
    left = [
        Problem(place, "is on this machine: give --output, --channel NAME or --checkpoints an s3:// address")
        for place in spec.file_uris(request)
    ]
    spec.refuse(job.path, left or spec.problems(request))
    return request, upload


def _s3(option: str, text: str) -> str:
    if not (text.startswith("s3://") and urlsplit(text).netloc):
        raise ShoalError(f"{option}: {text!r}: an address such as s3://bucket/prefix was expected")
    return text


def _place_channels(job: JobFile, request: Request, places: Mapping[str, str]) -> None:
    declared = {channel["ChannelName"]: channel for channel in request.get("InputDataConfig", [])}
    for name, text in places.items():
        if name not in declared:
            spec.refuse(job.path, [Problem("--channel", f"{name!r} is not a channel of this job")])
        source = declared[name]["DataSource"].setdefault("S3DataSource", {"S3DataType": "S3Prefix"})
        declared[name]["DataSource"] = {"S3DataSource": {**source, "S3Uri": _s3(f"--channel {name}", text)}}


def _upload(job: JobFile, request: Request, region: str) -> Upload | None:
    """Replace a folder of this machine by the address of its archive, below the job's output; as the SDK does."""
    directory = submit_directory(request)
    output = urlsplit(request["OutputDataConfig"]["S3OutputPath"])
    if directory is None or not directory.startswith(FILE_SCHEME) or output.scheme != "s3":
        return None
    folder = job.local_path(directory)
    if not folder.is_dir():
        raise ShoalError(f"{job.path}: HyperParameters.{SUBMIT_DIRECTORY}: there is no folder {folder}")
    name = request["TrainingJobName"]
    key = "/".join(part for part in (output.path.strip("/"), name, "source", ARCHIVE) if part)
    upload = Upload(folder, output.netloc, key)
    parameters = request["HyperParameters"]
    parameters[SUBMIT_DIRECTORY] = json.dumps(upload.uri)
    parameters.setdefault("sagemaker_job_name", json.dumps(name))
    parameters.setdefault("sagemaker_region", json.dumps(region))
    if request.get("EnableNetworkIsolation"):  # then the container cannot fetch it, and the service brings it
        parameters[SUBMIT_DIRECTORY] = json.dumps(f"/opt/ml/input/data/{_CODE_CHANNEL}/{ARCHIVE}")
        source = {"S3DataType": "S3Prefix", "S3Uri": upload.uri, "S3DataDistributionType": "FullyReplicated"}
        channel = {"ChannelName": _CODE_CHANNEL, "DataSource": {"S3DataSource": source}}
        request.setdefault("InputDataConfig", []).append(channel)
    return upload
