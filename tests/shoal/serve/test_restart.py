"""What survives the server: jobs that run, jobs that wait, what was printed, objects; what is said of lost runs."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace

import docker
import pytest
from endpoint import Endpoint, channel, request, runs_of, until

from shoal.serve.store import Job, Store

pytestmark = pytest.mark.engine


def test_jobs_logs_and_objects_survive_a_killed_server(start: Callable[..., Endpoint]) -> None:
    endpoint = start()
    s3 = endpoint.client("s3")
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.put_object(Bucket="bucket", Key="data/go", Body=b"go on", Metadata={"a": "b"}, ContentType="text/plain")
    s3.put_object(Bucket="bucket", Key="gone", Body=b"")
    s3.delete_object(Bucket="bucket", Key="gone")
    waits = "echo first; until [ -e /tmp/go ]; do sleep 0.1; done; echo last; echo 1 > /opt/ml/model/x"
    running, queued = request(waits, "bucket"), request("cat /opt/ml/input/data/in/go; echo", "bucket")
    queued["InputDataConfig"] = [channel("in", "s3://bucket/data/")]
    endpoint.sagemaker.create_training_job(**running)
    endpoint.sagemaker.create_training_job(**queued)
    name, waiting = running["TrainingJobName"], queued["TrainingJobName"]
    endpoint.until_printed(name, "first")
    endpoint.end(signal.SIGKILL)
    client = docker.from_env()
    client.containers.get(f"{name}-algo-1").exec_run(["touch", "/tmp/go"])
    client.close()
    endpoint.start()
    described = endpoint.until_ended(name)
    assert described["TrainingJobStatus"] == "Completed", described.get("FailureReason")
    assert endpoint.lines(name) == {"algo-1": ["first", "last"]}
    s3 = endpoint.client("s3")
    assert s3.head_object(Bucket="bucket", Key=f"results/{name}/output/model.tar.gz")["ContentLength"] > 0
    assert endpoint.until_ended(waiting)["TrainingJobStatus"] == "Completed"
    assert endpoint.lines(waiting) == {"algo-1": ["go on"]}
    kept = s3.get_object(Bucket="bucket", Key="data/go")
    assert (kept["Body"].read(), kept["Metadata"], kept["ContentType"]) == (b"go on", {"a": "b"}, "text/plain")
    assert "gone" not in {item["Key"] for item in s3.list_objects_v2(Bucket="bucket")["Contents"]}


def test_a_run_that_was_lost_is_told_as_failed_and_leaves_nothing(start: Callable[..., Endpoint]) -> None:
    endpoint = start()
    endpoint.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    wanted = request("echo ready; while :; do sleep 0.1; done", "bucket")
    name = wanted["TrainingJobName"]
    endpoint.sagemaker.create_training_job(**wanted)
    endpoint.until_printed(name, "ready")
    endpoint.end()  # the job goes on
    (process,) = runs_of(endpoint.state)
    os.kill(process, signal.SIGKILL)
    until(lambda: not list(runs_of(endpoint.state)), "end of the run")
    endpoint.start()
    described = endpoint.until_ended(name)
    assert described["TrainingJobStatus"] == "Failed"
    assert described["FailureReason"].startswith("InternalServerError: shoal run ended before the job did")
    assert endpoint.lines(name) == {"algo-1": ["ready"]}
    client = docker.from_env()
    assert not client.containers.list(all=True, filters={"label": f"shoal.job={name}"})
    client.close()


def test_a_run_that_could_not_begin_without_the_server_begins_with_the_next(start: Callable[..., Endpoint]) -> None:
    endpoint = start()
    endpoint.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    endpoint.end(signal.SIGKILL)
    wanted = request("echo begun", "bucket")
    name = wanted["TrainingJobName"]
    folder = endpoint.state / "jobs" / name
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(wanted))
    (folder / "shoal-run.log").write_text("shoal: s3://bucket/x cannot be read: Could not connect to the endpoint\n")
    job = Job(name, wanted, "eu-west-1", "running")
    Store(endpoint.state / "jobs.sqlite").add(replace(job, stages=job.entered("Pending", "Waiting")))
    endpoint.start()
    described = endpoint.until_ended(name)
    assert described["TrainingJobStatus"] == "Completed", described.get("FailureReason")
    assert endpoint.lines(name) == {"algo-1": ["begun"]}
