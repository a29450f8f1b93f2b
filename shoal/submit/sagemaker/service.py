"""SageMaker, S3 and CloudWatch, through boto3: the only file here that talks to them."""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError

from shoal.errors import ShoalError
from shoal.job.spec import Request
from shoal.submit.sagemaker.request import Upload
from shoal.submit.source import pack

_LOG_GROUP = "/aws/sagemaker/TrainingJobs"
_BETWEEN_LOOKS_S = 2.0


def region() -> str:
    """Return the region that the environment or the profile names.

    Raises:
        ShoalError: none.
    """
    with _sentences("reading the profile"):
        found = boto3.session.Session().region_name
    if not found:
        raise ShoalError("SageMaker: no region is set: set AWS_REGION, or `region` in the profile", exit_code=3)
    return str(found)


class Service:
    """The service in one region, with the credentials and endpoints that boto3 finds."""

    def __init__(self) -> None:
        self._region = region()
        with _sentences("connecting"):
            self._session = boto3.session.Session(region_name=self._region)
            self._client = self._session.client("sagemaker")

    @functools.cached_property
    def _logs(self) -> Any:
        """One client for all threads: clients may be shared, but not be made side by side."""
        return self._session.client("logs")

    def create(self, request: Request, upload: Upload | None) -> str:
        """Upload the script's folder and create the job; return its ARN. If the job is refused, nothing stays in S3.

        Raises:
            ShoalError: there is a job of this name, something is refused, or nobody answers.
        """
        name = request["TrainingJobName"]
        if self._described(name) is not None:
            raise ShoalError(f"TrainingJobName: {name!r} has been used already: give another name with --job-name")
        if upload is None:
            return self._create(request)
        with _sentences("uploading the script's folder"):
            s3 = self._session.client("s3")
            with tempfile.TemporaryFile() as stream:
                pack(upload.folder, stream)
                stream.seek(0)
                s3.upload_fileobj(stream, upload.bucket, upload.key)
        try:
            return self._create(request)
        except BaseException:
            with _sentences("removing the uploaded folder"):
                s3.delete_object(Bucket=upload.bucket, Key=upload.key)
            raise

    def _create(self, request: Request) -> str:
        with _sentences(f"creating {request['TrainingJobName']}"):
            return str(self._client.create_training_job(**request)["TrainingJobArn"])

    def describe(self, name: str) -> dict[str, Any]:
        """Return the description of a job.

        Raises:
            ShoalError: there is none.
        """
        described = self._described(name)
        if described is None:
            raise ShoalError(f"{name}: SageMaker has no such job in {self._region}")
        return described

    def _described(self, name: str) -> dict[str, Any] | None:
        with _sentences(f"describing {name}"):
            try:
                return dict(self._client.describe_training_job(TrainingJobName=name))
            except ClientError as error:
                answer = error.response["Error"]
                missing = answer["Code"] in ("ValidationException", "ResourceNotFound", "ResourceNotFoundException")
                # The service has no code of its own for it.
                if missing and any(words in answer["Message"] for words in ("not found", "ould not find")):
                    return None
                raise

    def stop(self, name: str) -> None:
        """Have a job stopped."""
        with _sentences(f"stopping {name}"):
            self._client.stop_training_job(TrainingJobName=name)

    def log_streams(self, name: str) -> dict[str, str]:
        """Return host -> name of its log stream, for the hosts that have one."""
        with _sentences(f"listing the logs of {name}"):
            pages = self._logs.get_paginator("describe_log_streams")
            try:
                found = [
                    str(stream["logStreamName"])
                    for page in pages.paginate(logGroupName=_LOG_GROUP, logStreamNamePrefix=f"{name}/")
                    for stream in page["logStreams"]
                ]
            except ClientError as error:
                if error.response["Error"]["Code"] == "ResourceNotFoundException":  # no job has written a line yet
                    return {}
                raise
        # `<job>/algo-1-1700000000`: one for each time the host was started.
        return {stream.partition("/")[2].rpartition("-")[0]: stream for stream in sorted(found)}

    def read(self, stream: str, over: Callable[[], bool]) -> Iterator[bytes]:
        """Return the lines of a log stream, and those to come, until the job is over."""
        token: dict[str, str] = {}
        while True:
            last_look = over()
            while True:
                with _sentences(f"reading {stream}"):
                    page = self._logs.get_log_events(
                        logGroupName=_LOG_GROUP, logStreamName=stream, startFromHead=True, **token
                    )
                yield from (f"{event['message']}\n".encode() for event in page["events"])
                if page["nextForwardToken"] == token.get("nextToken"):  # the end, for now
                    break
                token = {"nextToken": page["nextForwardToken"]}
            if last_look:
                return
            time.sleep(_BETWEEN_LOOKS_S)


@contextmanager
def _sentences(doing: str) -> Iterator[None]:
    """Say in one line what AWS has against something, or why it was not asked."""
    try:
        yield
    except (BotoCoreError, Boto3Error, ClientError) as error:
        answered = isinstance(error, ClientError)
        raise ShoalError(
            f"SageMaker, {doing}: {' '.join(str(error).split())}", exit_code=2 if answered else 3
        ) from error
