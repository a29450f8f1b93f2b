"""The operations of the SageMaker API, through moto's parser and serializer and botocore's model of the service.

What the service refuses is refused here with its error codes; its model names others in places. A job that is not
there is a ValidationException, as the service really answers, and not the ResourceNotFound that its model promises.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from flask import current_app
from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import ActionResult, BaseResponse, EmptyResult
from moto.sagemaker.exceptions import SagemakerClientError  # moto takes an error's service from its module

from shoal.job import local, spec
from shoal.job.shape import check, show
from shoal.serve import needed, view
from shoal.serve.jobs import CannotStopError, Jobs, TooManyTagsError
from shoal.serve.store import Job, NameTakenError, Query

JOBS = "SHOAL_JOBS"  # of the Flask application's configuration
_OPERATIONS = (
    "CreateTrainingJob",
    "DescribeTrainingJob",
    "ListTrainingJobs",
    "StopTrainingJob",
    "AddTags",
    "ListTags",
    "DeleteTags",
)
_SORT: dict[str, Literal["name", "created", "status"]] = {
    "Name": "name",
    "CreationTime": "created",
    "Status": "status",
}
_CONDITIONS = {
    "CreationTimeAfter": "created > ?",
    "CreationTimeBefore": "created < ?",
    "LastModifiedTimeAfter": "modified > ?",
    "LastModifiedTimeBefore": "modified < ?",
    "NameContains": "instr(name, ?) > 0",
    "StatusEquals": "status = ?",
}
_DEFAULT_PAGE = 10


class TrainingJobs(BaseResponse):
    """Answers one request."""

    def __init__(self) -> None:
        super().__init__(service_name="sagemaker")

    def call_action(self) -> TYPE_RESPONSE:
        """Answer; other operations are refused, for an answer without a deed would be a lie."""
        operation = self._get_action()
        if operation in _OPERATIONS:
            return super().call_action()
        text = f"shoal serve does not know {operation}: it knows {', '.join(_OPERATIONS)}"
        return self.serialized(ActionResult(SagemakerClientError("UnknownOperationException", text)))

    def create_training_job(self) -> ActionResult:
        """CreateTrainingJob."""
        request = self._request("CreateTrainingJob")
        problems = [*spec.problems(request), *_refusals(request)]
        problems += [f"{place}: file:// is not taken here: put it into S3" for place in spec.file_uris(request)]
        if not problems:
            problems = needed.missing(self._jobs.objects, request)
        _refuse(problems)
        name = request["TrainingJobName"]
        job = Job(name, request, self.region)
        try:
            self._jobs.create(replace(job, stages=job.entered("Pending", "Waiting for its turn")))
        except NameTakenError as error:
            text = f"Job name must be unique within an AWS account and region, and {name} is taken: {view.arn(name)}"
            raise SagemakerClientError("ResourceInUse", text) from error
        return ActionResult({"TrainingJobArn": view.arn(name)})

    def describe_training_job(self) -> ActionResult:
        """DescribeTrainingJob."""
        answer = view.described(self._named("DescribeTrainingJob"))
        return ActionResult(view.with_times(spec.operation_shape("DescribeTrainingJob", "output"), answer))

    def stop_training_job(self) -> ActionResult:
        """StopTrainingJob."""
        job = self._named("StopTrainingJob")
        try:
            self._jobs.stop(job.name)
        except CannotStopError as error:
            text = f"The request was rejected because the training job is in status {error}."
            raise SagemakerClientError("ValidationException", text) from error
        return EmptyResult()

    def list_training_jobs(self) -> ActionResult:
        """ListTrainingJobs."""
        request = self._request("ListTrainingJobs")
        query = _query(request)
        found = self._jobs.find(query)
        answer: dict[str, Any] = {"TrainingJobSummaries": [view.summary(job) for job in found[: query.limit - 1]]}
        if len(found) == query.limit:
            last = found[-2]
            answer["NextToken"] = _token((getattr(last, query.sort_by), last.name))
        return ActionResult(view.with_times(spec.operation_shape("ListTrainingJobs", "output"), answer))

    def add_tags(self) -> ActionResult:
        """AddTags: a key that is there gets the new value."""
        request = self._request("AddTags")
        added = {tag["Key"]: tag["Value"] for tag in request["Tags"]}
        return ActionResult({"Tags": self._tag(request["ResourceArn"], lambda tags: tags | added)})

    def delete_tags(self) -> ActionResult:
        """DeleteTags: a key that is not there is passed over."""
        request = self._request("DeleteTags")
        gone = set(request["TagKeys"])
        self._tag(request["ResourceArn"], lambda tags: {key: tags[key] for key in tags if key not in gone})
        return EmptyResult()

    def list_tags(self) -> ActionResult:
        """ListTags: all on one page, for a job has no more than one page holds."""
        return ActionResult({"Tags": self._tag(self._request("ListTags")["ResourceArn"], lambda tags: tags)})

    def _tag(self, resource: str, change: Callable[[dict[str, str]], dict[str, str]]) -> list[dict[str, str]]:
        name = resource.rpartition("/")[2]
        if resource != view.arn(name) or self._jobs.get(name) is None:
            raise SagemakerClientError("ValidationException", "Requested resource not found.")
        try:
            tags = self._jobs.tag(name, change)
        except TooManyTagsError as error:
            raise SagemakerClientError("ResourceLimitExceeded", str(error)) from error
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    @property
    def _jobs(self) -> Jobs:
        return cast("Jobs", current_app.config[JOBS])

    def _request(self, operation: str) -> dict[str, Any]:
        """Return the request as the model wants it."""
        try:
            request = json.loads(self.body or "{}")
        except (ValueError, RecursionError) as error:
            raise SagemakerClientError("SerializationException", f"The body is not JSON: {error}") from error
        shape = spec.operation_shape(operation, "input")
        if operation != "CreateTrainingJob":  # that has rules beyond its shape: `spec.problems`
            _refuse(check(shape, request))
        elif not isinstance(request, dict):
            raise SagemakerClientError("SerializationException", "The body is not a JSON object")
        return cast("dict[str, Any]", request)

    def _named(self, operation: str) -> Job:
        job = self._jobs.get(self._request(operation)["TrainingJobName"])
        if job is None:
            raise SagemakerClientError("ValidationException", "Requested resource not found.")
        return job


def _refuse(problems: list[Any]) -> None:
    if problems:
        errors = "1 validation error" if len(problems) == 1 else f"{len(problems)} validation errors"
        text = "; ".join(str(problem) for problem in problems)
        raise SagemakerClientError("ValidationException", f"{errors} detected: {text}")


def _refusals(request: dict[str, Any]) -> list[Any]:
    """Return what in a request that the service would take cannot be run here."""
    if spec.problems(request):
        return []
    here = local.override(request, name=None, output=Path("runs"), source=None, channels={})
    return list(local.refusals(here, {}))


def _query(request: dict[str, Any]) -> Query:
    conditions = [(text, _text(field, request[field])) for field, text in _CONDITIONS.items() if field in request]
    if "WarmPoolStatusEquals" in request or "TrainingPlanArnEquals" in request:
        conditions.append(("name = ?", ""))  # no job here has either
    return Query(
        sort_by=_SORT[request.get("SortBy", "CreationTime")],
        descending=request.get("SortOrder", "Ascending") == "Descending",
        conditions=conditions,
        limit=request.get("MaxResults", _DEFAULT_PAGE) + 1,  # one more, to know whether there is another page
        after=_place(request["NextToken"]) if request.get("NextToken") else None,
    )


def _text(field: str, value: Any) -> str:
    """Return a value as the store has it; a timestamp comes as seconds since 1970."""
    if isinstance(value, str) and "Time" not in field:
        return value
    try:
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds")
    except (TypeError, ValueError, OverflowError, OSError) as error:
        text = f"{field}: {show(value)} is no time: seconds since 1970 are"
        raise SagemakerClientError("ValidationException", text) from error


def _token(place: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _place(token: str) -> tuple[str, str]:
    try:
        value, name = json.loads(base64.urlsafe_b64decode(token))
        return str(value), str(name)
    except (ValueError, TypeError, RecursionError) as error:  # TypeError: JSON, and no list
        raise SagemakerClientError("ValidationException", "The NextToken is none that this endpoint gave") from error
