"""What the endpoint answers without running anything: lists, refusals, other services."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from botocore.exceptions import ClientError
from endpoint import Endpoint, channel, request

from shoal.serve.store import Job, Store
from shoal.serve.view import arn

pytestmark = pytest.mark.engine  # `shoal serve` wants one when it starts
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def endpoint(start: Callable[..., Endpoint], tmp_path_factory: pytest.TempPathFactory) -> Endpoint:
    """An endpoint that has known twelve jobs, one a day, and has an empty bucket."""
    state: Path = tmp_path_factory.mktemp("serve") / "state"
    state.mkdir()
    store = Store(state / "jobs.sqlite")
    for day in range(12):
        time = (BEGAN + timedelta(days=day)).isoformat(timespec="milliseconds")
        status = "Failed" if day % 4 == 0 else "Completed"
        stages = [{"Status": status, "StartTime": time, "StatusMessage": "ended"}]
        name = f"{'even' if day % 2 == 0 else 'odd'}-{day}"
        store.add(Job(name, request("", "b"), "eu-west-1", "ended", status, status, stages, created=time))
    endpoint = start(state=state)
    endpoint.client("s3").create_bucket(Bucket="there", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    return endpoint


def days(found: list[dict[str, Any]]) -> list[int]:
    return [int(item["TrainingJobName"].split("-")[1]) for item in found]


@pytest.mark.parametrize("order", ["Ascending", "Descending"])
@pytest.mark.parametrize("by", ["CreationTime", "Name", "Status"])
def test_a_list_is_whole_and_sorted_over_its_pages(endpoint: Endpoint, by: str, order: str) -> None:
    pages = endpoint.sagemaker.get_paginator("list_training_jobs").paginate(
        SortBy=by, SortOrder=order, PaginationConfig={"PageSize": 5}
    )
    sizes, found = [], []
    for page in pages:
        sizes.append(len(page["TrainingJobSummaries"]))
        found += page["TrainingJobSummaries"]
    assert sizes == [5, 5, 2]
    key = {"CreationTime": "CreationTime", "Name": "TrainingJobName", "Status": "TrainingJobStatus"}[by]
    expected = sorted(found, key=lambda job: (job[key], job["TrainingJobName"]), reverse=order == "Descending")
    assert found == expected
    assert sorted(days(found)) == list(range(12))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, list(range(10))),
        ({"NameContains": "odd"}, [1, 3, 5, 7, 9, 11]),
        ({"StatusEquals": "Failed"}, [0, 4, 8]),
        ({"StatusEquals": "InProgress"}, []),
        ({"CreationTimeAfter": BEGAN + timedelta(days=8), "NameContains": "even"}, [10]),
        ({"CreationTimeBefore": BEGAN + timedelta(days=2)}, [0, 1]),
        ({"LastModifiedTimeAfter": BEGAN + timedelta(days=9000)}, []),
        ({"WarmPoolStatusEquals": "InUse"}, []),
    ],
)
def test_a_list_holds_what_was_asked_for(endpoint: Endpoint, wanted: dict[str, Any], expected: list[int]) -> None:
    assert days(endpoint.sagemaker.list_training_jobs(**wanted)["TrainingJobSummaries"]) == expected


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"NextToken": "abc"}, "NextToken"),
        ({"NextToken": "NQ=="}, "NextToken"),  # 5, in base 64
        ({"NextToken": "W1tb" * 2000}, "NextToken"),  # brackets
        (
            {"CreationTimeAfter": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)},
            "CreationTimeAfter.* is no time",
        ),
    ],
)
def test_what_a_list_cannot_have_been_asked_for_is_refused(
    endpoint: Endpoint, wanted: dict[str, Any], words: str
) -> None:
    with pytest.raises(ClientError, match=rf"ValidationException.*{words}"):
        endpoint.sagemaker.list_training_jobs(**wanted)


def changed(**changes: Any) -> dict[str, Any]:
    return {**request("true", "no-such-bucket"), **changes}


AUGMENTED = channel("train", "s3://b/x")
AUGMENTED["DataSource"]["S3DataSource"]["S3DataType"] = "AugmentedManifestFile"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (changed(TrainingJobName="a_b"), "1 validation error detected: TrainingJobName: 'a_b' does not match"),
        (changed(StoppingCondition={"MaxRuntimeInSeconds": 10**8}), "StoppingCondition.MaxRuntimeInSeconds: 100000000"),
        (changed(RoleArn="x" * 20, Environment={"1": "x"}), "2 validation errors detected: RoleArn: .*; Environment"),
        (changed(), r"OutputDataConfig.S3OutputPath: .* cannot be written: there is no bucket no-such-bucket"),
        (
            changed(CheckpointConfig={"S3Uri": "s3://nor-this/x"}),
            r"2 validation errors detected: Output.* no bucket no-such-.*; CheckpointConfig.S3Uri: .* no bucket nor-",
        ),
        (
            changed(TensorBoardOutputConfig={"S3OutputPath": "s3://nor-this/x"}),
            "TensorBoardOutputConfig.S3OutputPath: .* no bucket nor-this",
        ),
        (changed(OutputDataConfig={"S3OutputPath": "file:///tmp/x"}), "OutputDataConfig.S3OutputPath: file:// is not"),
        (changed(InputDataConfig=[channel("a", "s3://there/x")]), r"\(a\): no S3 objects found under s3://there/x"),
        (changed(InputDataConfig=[AUGMENTED]), "AugmentedManifestFile"),
        (
            changed(HyperParameters={"sagemaker_submit_directory": '"s3://there/c"'}),
            "no S3 objects found under s3://there",
        ),
    ],
)
def test_what_the_service_would_refuse_is_refused(endpoint: Endpoint, wanted: dict[str, Any], words: str) -> None:
    with pytest.raises(ClientError, match=words) as refused:
        endpoint.sagemaker.create_training_job(**wanted)
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    names = [job["TrainingJobName"] for job in endpoint.sagemaker.list_training_jobs()["TrainingJobSummaries"]]
    assert wanted["TrainingJobName"] not in names


@pytest.mark.parametrize("operation", ["describe_training_job", "stop_training_job"])
def test_a_job_that_is_not_there_is_no_job(endpoint: Endpoint, operation: str) -> None:
    with pytest.raises(ClientError, match=r"\(ValidationException\).*: Requested resource not found\.$"):
        getattr(endpoint.sagemaker, operation)(TrainingJobName="nobody")


def test_an_operation_that_is_not_ours_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(ClientError, match=r"UnknownOperationException.*does not know ListModels"):
        endpoint.sagemaker.list_models()
    with pytest.raises(ClientError, match="shoal serve has no ecr"):
        endpoint.client("ecr").describe_repositories()
    assert "Warning" not in endpoint.said()


def test_a_body_that_is_no_object_is_refused(endpoint: Endpoint) -> None:
    headers = {
        "X-Amz-Target": "SageMaker.CreateTrainingJob",
        "Content-Type": "application/x-amz-json-1.1",
        "Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/eu-west-1/sagemaker/aws4_request, "
        "SignedHeaders=host, Signature=0",
    }
    for body in (b"{", b"[]", b"\xff"):
        answer = requests.post(endpoint.url, data=body, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["__type"]) == (400, "SerializationException"), body


def test_the_account_is_told(endpoint: Endpoint) -> None:
    assert endpoint.client("sts").get_caller_identity()["Account"] == "123456789012"


def test_web_pages_may_not_ask(endpoint: Endpoint) -> None:
    answer = requests.options(endpoint.url, headers={"Origin": "http://evil.example"}, timeout=60)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    # A name of the page's own that leads to this machine.
    port = endpoint.url.rpartition(":")[2]
    assert requests.get(endpoint.url, headers={"Host": f"evil.example:{port}"}, timeout=60).status_code == 403
    assert requests.get(f"http://localhost:{port}", timeout=60).status_code == 200
    assert requests.post(f"{endpoint.url}/moto-api/reset", timeout=60).status_code == 501


def test_tags_of_a_job_are_told_and_changed(endpoint: Endpoint) -> None:
    def tags(found: dict[str, Any]) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in found["Tags"]}

    client, job = endpoint.sagemaker, {"ResourceArn": arn("odd-1")}
    assert tags(client.list_tags(**job)) == {}
    client.add_tags(**job, Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
    assert tags(client.add_tags(**job, Tags=[{"Key": "b", "Value": ""}])) == {"a": "1", "b": ""}
    client.delete_tags(**job, TagKeys=["a", "c"])
    assert tags(client.list_tags(**job)) == {"b": ""}
    with pytest.raises(ClientError, match=r"ResourceLimitExceeded.*51 tags, and 50 are allowed"):
        client.add_tags(**job, Tags=[{"Key": f"k{i}", "Value": ""} for i in range(50)])
    with pytest.raises(ClientError, match=r"ValidationException.*Requested resource not found"):
        client.list_tags(ResourceArn=arn("nobody"))
