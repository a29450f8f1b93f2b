"""`--to sagemaker` against moto: what is uploaded and sent, status, logs, stop, and what is refused."""

import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aws_server import AwsServer
from job_file import JobFile

from shoal.submit.sagemaker import service

TO = ("--to", "sagemaker")
Shoal = Callable[..., str]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsServer]:
    server = AwsServer()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(service, "_BETWEEN_LOOKS_S", 0.05)
    yield server
    server.close()


def described(aws: AwsServer) -> dict[str, Any]:
    return dict(aws.client("sagemaker").describe_training_job(TrainingJobName="digits"))


def test_what_is_sent_and_uploaded(aws: AwsServer, job: JobFile, shoal: Shoal) -> None:
    printed = json.loads(shoal("submit", job.write(), *TO, "--dry-run"))
    assert aws.keys() == []
    assert shoal("submit", job.write(), *TO) == "arn:aws:sagemaker:us-west-2:123456789012:training-job/digits\n"
    assert aws.keys() == ["runs/digits/source/sourcedir.tar.gz"]
    content = aws.client("s3").get_object(Bucket="bucket", Key=aws.keys()[0])["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        assert packed.getnames() == ["train.py"]
    parameters = described(aws)["HyperParameters"]
    assert parameters == printed["HyperParameters"]
    assert json.loads(parameters["sagemaker_submit_directory"]) == "s3://bucket/runs/digits/source/sourcedir.tar.gz"
    assert json.loads(parameters["sagemaker_region"]) == "us-west-2"
    assert json.loads(parameters["sagemaker_job_name"]) == "digits"
    assert (parameters["sagemaker_program"], parameters["lr"]) == ("train.py", "0.1")
    for field in ("RoleArn", "ResourceConfig", "StoppingCondition", "OutputDataConfig", "InputDataConfig"):
        assert printed[field] == job.request[field]


def test_a_profiler_that_is_switched_off_is_off_in_the_container_too(
    aws: AwsServer, job: JobFile, shoal: Shoal
) -> None:
    job.request["ProfilerConfig"] = {"DisableProfiler": True}
    job.request["Environment"] = {"A": "b"}
    sent = json.loads(shoal("submit", job.write(), *TO, "--dry-run"))
    assert sent["Environment"] == {"A": "b", "SHOAL_PROFILE": "0"}
    assert sent["ProfilerConfig"] == {"DisableProfiler": True}


def test_places_on_the_command_line(aws: AwsServer, job: JobFile, shoal: Shoal) -> None:
    job.request["OutputDataConfig"]["S3OutputPath"] = "file://runs"
    source = job.request["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    source.update({"S3Uri": "file://data", "S3DataDistributionType": "ShardedByS3Key"})
    options = ("--output", "s3://bucket/out/", "--channel", "train=s3://bucket/in", "--checkpoints", "s3://bucket/c")
    sent = json.loads(shoal("submit", job.write(), *TO, "--dry-run", *options))
    assert sent["OutputDataConfig"]["S3OutputPath"] == "s3://bucket/out/"
    placed = sent["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    assert (placed["S3Uri"], placed["S3DataDistributionType"]) == ("s3://bucket/in", "ShardedByS3Key")
    assert sent["CheckpointConfig"] == {"S3Uri": "s3://bucket/c"}
    assert "s3://bucket/out/digits/source/" in sent["HyperParameters"]["sagemaker_submit_directory"]


def test_an_isolated_job_gets_its_code_as_a_channel(aws: AwsServer, job: JobFile, shoal: Shoal) -> None:
    job.request["EnableNetworkIsolation"] = True
    sent = json.loads(shoal("submit", job.write(), *TO, "--dry-run"))
    archive = "/opt/ml/input/data/code/sourcedir.tar.gz"
    assert json.loads(sent["HyperParameters"]["sagemaker_submit_directory"]) == archive
    code = sent["InputDataConfig"][1]
    assert code["ChannelName"] == "code"
    assert code["DataSource"]["S3DataSource"]["S3Uri"] == "s3://bucket/runs/digits/source/sourcedir.tar.gz"


def test_a_request_without_a_folder_is_sent_as_it_is(aws: AwsServer, job: JobFile, shoal: Shoal) -> None:
    job.request["HyperParameters"]["sagemaker_submit_directory"] = "s3://bucket/code.tar.gz"
    assert json.loads(shoal("submit", job.write(), *TO, "--dry-run")) == job.request
    shoal("submit", job.write(), *TO)
    assert aws.keys() == []


@pytest.mark.parametrize(
    ("status", "secondary", "exit_code"),
    [("Completed", "Completed", 0), ("Failed", "Failed", 1), ("Stopped", "MaxRuntimeExceeded", 130)],
)
def test_status(aws: AwsServer, job: JobFile, shoal: Shoal, status: str, secondary: str, exit_code: int) -> None:
    shoal("submit", job.write(), *TO)
    reason = "AlgorithmError: ValueError: boom" if status == "Failed" else None
    aws.set("digits", status, secondary, reason)
    told = json.loads(shoal("status", "digits", *TO, "--json", exit_code=exit_code))
    assert (told["TrainingJobStatus"], told["SecondaryStatus"]) == (status, secondary)
    assert told.get("FailureReason") == reason


def test_logs_of_a_job_that_is_over(aws: AwsServer, job: JobFile, shoal: Shoal) -> None:
    shoal("submit", job.write(), *TO)
    assert shoal("logs", "digits", *TO) == ""
    aws.log("digits/algo-1-1700000000", "one", "two")
    aws.log("digits/algo-2-1700000001", "three")
    aws.log("digits-2/algo-1-1700000001", "another job's")
    assert shoal("logs", "digits", *TO).splitlines() == ["algo-1 | one", "algo-1 | two", "algo-2 | three"]


def test_logs_are_followed_to_the_end(aws: AwsServer, job: JobFile, shoal: Shoal) -> None:
    shoal("submit", job.write(), *TO)
    aws.set("digits", "InProgress", "Training")
    aws.log("digits/algo-1-1700000000", "one")
    aws.log("digits/algo-2-1700000000", "two")

    def rest() -> None:
        aws.log("digits/algo-1-1700000000", "last")
        aws.set("digits", "Completed", "Completed")

    timer = threading.Timer(0.5, rest)
    timer.start()
    lines = shoal("logs", "digits", *TO, "--follow").splitlines()
    timer.join()
    assert sorted(lines) == ["algo-1 | last", "algo-1 | one", "algo-2 | two"]


def test_stop(aws: AwsServer, job: JobFile, shoal: Shoal) -> None:
    shoal("submit", job.write(), *TO)
    aws.set("digits", "InProgress", "Training")
    shoal("stop", "digits", *TO)
    assert described(aws)["TrainingJobStatus"] == "Stopped"
    assert shoal("stop", "digits", *TO) == "digits: has ended already: Stopped\n"


def test_a_name_that_is_taken(aws: AwsServer, job: JobFile, shoal: Shoal, refused: Shoal) -> None:
    shoal("submit", job.write(), *TO)
    before = aws.client("s3").head_object(Bucket="bucket", Key=aws.keys()[0])["LastModified"]
    line = refused("submit", job.write(), *TO)
    assert line == "TrainingJobName: 'digits' has been used already: give another name with --job-name"
    assert aws.client("s3").head_object(Bucket="bucket", Key=aws.keys()[0])["LastModified"] == before


def test_a_job_that_the_service_refuses_leaves_nothing(aws: AwsServer, job: JobFile, refused: Shoal) -> None:
    answer = aws._answer

    def over_quota(environ: dict[str, Any], start_response: Any) -> Any:
        if environ.get("HTTP_X_AMZ_TARGET") != "SageMaker.CreateTrainingJob":
            return answer(environ, start_response)
        start_response("400 Bad Request", [("Content-Type", "application/x-amz-json-1.1")])
        return [json.dumps({"__type": "ResourceLimitExceeded", "message": "ml.c5.xlarge: 0 instances"}).encode()]

    aws._server.app = over_quota
    line = refused("submit", job.write(), *TO)
    assert line.startswith("SageMaker, creating digits: An error occurred (ResourceLimitExceeded)")
    assert aws.keys() == []


def test_a_bucket_that_is_not_there(aws: AwsServer, job: JobFile, refused: Shoal) -> None:
    line = refused("submit", job.write(), *TO, "--output", "s3://nowhere/runs")
    assert line.startswith("SageMaker, uploading the script's folder: ")
    assert "NoSuchBucket" in line


def local_channel(job: JobFile) -> None:
    job.request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] = "file://data"


def local_output(job: JobFile) -> None:
    job.request["OutputDataConfig"]["S3OutputPath"] = "file://runs"
    job.request["HyperParameters"]["sagemaker_submit_directory"] = "s3://bucket/code.tar.gz"


def no_source(job: JobFile) -> None:
    job.request["HyperParameters"]["sagemaker_submit_directory"] = "file://nowhere"


def nothing(job: JobFile) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        (local_channel, (), "InputDataConfig[0].DataSource.S3DataSource.S3Uri: is on this machine: give --output"),
        (local_output, (), "OutputDataConfig.S3OutputPath: is on this machine: give --output"),
        (no_source, (), "HyperParameters.sagemaker_submit_directory: there is no folder"),
        (nothing, ("--output", "/fs/runs"), "--output: '/fs/runs': an address such as s3://bucket/prefix was expected"),
        (nothing, ("--channel", "train=s3://"), "--channel train: 's3://': an address such as"),
        (nothing, ("--channel", "x=s3://bucket/x"), "--channel: 'x' is not a channel of this job"),
    ],
)
def test_what_is_refused(
    aws: AwsServer,
    job: JobFile,
    refused: Shoal,
    change: Callable[[JobFile], None],
    options: tuple[str, ...],
    expected: str,
) -> None:
    change(job)
    assert expected in refused("submit", job.write(), *TO, *options)
    assert aws.keys() == []


@pytest.mark.parametrize("verb", ["status", "logs", "stop"])
def test_a_job_that_is_not_there(aws: AwsServer, refused: Shoal, verb: str) -> None:
    assert refused(verb, "nobody", *TO) == "nobody: SageMaker has no such job in us-west-2"


def test_no_region(job: JobFile, refused: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert refused("submit", job.write(), *TO).startswith("SageMaker: no region is set: set AWS_REGION")


def test_no_answer(aws: AwsServer, refused: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.close()
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert "Could not connect to the endpoint URL" in refused("status", "digits", *TO)
