"""Whole jobs through boto3: created, described, logged, stopped; what is in S3 at their end."""

import io
import json
import tarfile

import docker
import pytest
from botocore.exceptions import ClientError
from endpoint import Endpoint, channel, request, until

from shoal.serve.view import arn

pytestmark = pytest.mark.engine


def archived(endpoint: Endpoint, uri: str) -> dict[str, str]:
    bucket, _slash, key = uri.removeprefix("s3://").partition("/")
    body = endpoint.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        return {m.name: tar.extractfile(m).read().decode() for m in tar if m.isreg()}  # type: ignore[union-attr]


def test_a_job_reads_from_s3_prints_to_cloudwatch_and_writes_to_s3(endpoint: Endpoint, bucket: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"code"))
    endpoint.client("s3").put_object(Bucket=bucket, Key="job/sourcedir.tar.gz", Body=packed.getvalue())
    script = "cat /opt/ml/input/data/train/x /opt/ml/code/train.py; echo; echo $TRAINING_JOB_ARN;"
    script += "hostname > /opt/ml/model/$(hostname); echo kept > /opt/ml/output/data/x;"
    wanted = request("", bucket, hosts=2)
    script += "echo 1 > /opt/ml/checkpoints/$(hostname)"
    wanted["Environment"] = {"SCRIPT": script}
    wanted["CheckpointConfig"] = {"S3Uri": f"s3://{bucket}/kept"}
    wanted["InputDataConfig"] = [channel("train", f"s3://{bucket}/data")]
    # As the SDK sends them: JSON in each value.
    wanted["HyperParameters"] = {
        "sagemaker_submit_directory": json.dumps(f"s3://{bucket}/job/sourcedir.tar.gz"),
        "sagemaker_program": json.dumps("train.py"),
    }
    name = wanted["TrainingJobName"]
    assert endpoint.sagemaker.create_training_job(**wanted)["TrainingJobArn"] == arn(name)
    waiter = endpoint.sagemaker.get_waiter("training_job_completed_or_stopped")
    waiter.wait(TrainingJobName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 100})
    described = endpoint.describe(name)
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Completed", "Completed")
    for field in ("HyperParameters", "InputDataConfig", "Environment"):
        assert described[field] == wanted[field]
    assert described["OutputDataConfig"] == {"KmsKeyId": "", **wanted["OutputDataConfig"]}
    assert described["EnableNetworkIsolation"] is False
    stages = [entry["Status"] for entry in described["SecondaryStatusTransitions"]]
    assert stages == ["Pending", "Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert all(entry["StatusMessage"] and entry["EndTime"] for entry in described["SecondaryStatusTransitions"])
    assert described["CreationTime"] <= described["TrainingStartTime"] <= described["TrainingEndTime"]
    model = f"s3://{bucket}/results/{name}/output/model.tar.gz"
    assert described["ModelArtifacts"]["S3ModelArtifacts"] == model
    assert archived(endpoint, model) == {"algo-1": "algo-1\n", "algo-2": "algo-2\n"}
    assert archived(endpoint, model.replace("model.", "output.")) == {"x": "kept\n"}
    kept = endpoint.client("s3").list_objects_v2(Bucket=bucket, Prefix="kept/")["Contents"]
    assert sorted(item["Key"] for item in kept) == ["kept/algo-1", "kept/algo-2"]
    assert endpoint.lines(name) == {host: ["hello", "code", arn(name)] for host in ("algo-1", "algo-2")}


def test_a_job_that_fails_says_why(endpoint: Endpoint, bucket: str) -> None:
    wanted = request("echo loss=0.5; printf 'ValueError: boom' > /opt/ml/output/failure; exit 1", bucket)
    wanted["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "train:loss", "Regex": "loss=([0-9.]+)"}]
    endpoint.sagemaker.create_training_job(**wanted)
    described = endpoint.until_ended(wanted["TrainingJobName"])
    assert described["TrainingJobStatus"] == "Failed"
    assert described["FailureReason"] == "ValueError: boom"
    assert [(m["MetricName"], m["Value"]) for m in described["FinalMetricDataList"]] == [("train:loss", 0.5)]
    with pytest.raises(ClientError, match="ResourceInUse") as taken:
        endpoint.sagemaker.create_training_job(**wanted)
    assert isinstance(taken.value, endpoint.sagemaker.exceptions.ResourceInUse) or "ResourceInUse" in str(taken.value)


def test_a_job_whose_image_is_not_there_fails(endpoint: Endpoint, bucket: str) -> None:
    wanted = request("true", bucket)
    wanted["AlgorithmSpecification"]["TrainingImage"] = "no-such-image:1"
    endpoint.sagemaker.create_training_job(**wanted)
    described = endpoint.until_ended(wanted["TrainingJobName"])
    assert described["TrainingJobStatus"] == "Failed"
    assert described["FailureReason"].startswith("ClientError: AlgorithmSpecification.TrainingImage: no image")


def test_a_job_is_stopped_and_the_next_one_waits_for_its_turn(
    endpoint: Endpoint, bucket: str, engine: docker.DockerClient
) -> None:
    loop = "trap 'echo saved > /opt/ml/model/part; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    first, second, third = (request(script, bucket) for script in (loop, "echo two", "echo three"))
    for each in (first, second, third):
        endpoint.sagemaker.create_training_job(**each)
    names = [each["TrainingJobName"] for each in (first, second, third)]
    endpoint.until_printed(names[0], "ready")
    until(lambda: endpoint.describe(names[0])["SecondaryStatus"] == "Training", "stage Training")
    # One at a time: the others have not begun.
    assert [endpoint.describe(name)["SecondaryStatus"] for name in names[1:]] == ["Pending", "Pending"]
    endpoint.sagemaker.stop_training_job(TrainingJobName=names[1])
    assert endpoint.until_ended(names[1])["SecondaryStatus"] == "Stopped"
    endpoint.sagemaker.stop_training_job(TrainingJobName=names[0])
    described = endpoint.until_ended(names[0])
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert "Stopping" in [entry["Status"] for entry in described["SecondaryStatusTransitions"]]
    assert archived(endpoint, described["ModelArtifacts"]["S3ModelArtifacts"]) == {"part": "saved\n"}
    with pytest.raises(ClientError, match="training job is in status Stopped"):
        endpoint.sagemaker.stop_training_job(TrainingJobName=names[0])
    assert endpoint.until_ended(names[2])["TrainingJobStatus"] == "Completed"
    assert endpoint.lines(names[1]) == {}
    until(lambda: not any(engine.networks.list(filters={"label": f"shoal.job={name}"}) for name in names), "networks")


def test_a_job_that_the_endpoint_cannot_go_on_with_fails_and_the_next_one_runs(
    endpoint: Endpoint, bucket: str, engine: docker.DockerClient
) -> None:
    first = request("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done", bucket)
    second = request("true", bucket)
    names = [first["TrainingJobName"], second["TrainingJobName"]]
    endpoint.sagemaker.create_training_job(**first)
    endpoint.sagemaker.create_training_job(**second)
    endpoint.until_printed(names[0], "ready")
    until(lambda: endpoint.describe(names[0])["SecondaryStatus"] == "Training", "stage Training")
    (endpoint.state / "jobs" / names[0] / "runs" / names[0] / "job.json").write_text("{")  # no JSON
    described = endpoint.until_ended(names[0])
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Failed", "Failed")
    assert described["FailureReason"].startswith("InternalServerError: JSONDecodeError: Expecting property name")
    assert not engine.containers.list(all=True, filters={"label": f"shoal.job={names[0]}"})
    assert endpoint.until_ended(names[1])["TrainingJobStatus"] == "Completed"
