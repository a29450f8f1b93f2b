"""Whole runs of jobs whose results go to S3: what is there afterwards, what is said when it cannot be brought there."""

import docker
import pytest
from bucket import Bucket
from job_folder import JobFolder, content, script

pytestmark = pytest.mark.engine
MODEL_AND_DATA = ("model.tar.gz", "output.tar.gz")
LEAVE = "hostname > /opt/ml/model/$(hostname); mkdir /opt/ml/output/data/d; echo 1 > /opt/ml/output/data/d/$(hostname)"


def to(job: JobFolder, bucket: Bucket, **fields: str) -> str:
    """Let a job's results go to a bucket; return the prefix of their keys."""
    job.request["OutputDataConfig"] = {"S3OutputPath": f"s3://{bucket.name}/results/", **fields}
    return f"results/{job.request['TrainingJobName']}/output"


def test_results_go_where_the_service_puts_them(job: JobFolder, engine: docker.DockerClient, bucket: Bucket) -> None:
    key = to(job, bucket, KmsKeyId="alias/key")
    script(job, LEAVE)
    done = job.shoal("run", env=bucket.environment, cwd=job.path)
    assert done.returncode == 0, done.stderr
    model = f"s3://{bucket.name}/{key}/model.tar.gz"
    assert job.described["ModelArtifacts"] == {"S3ModelArtifacts": model}
    assert done.stderr.splitlines()[-1].endswith(f"Completed    {model}")
    # The same files, here and there.
    output = job.run_folder / "output"
    assert bucket.content() == {f"{key}/{name}": (output / name).read_bytes() for name in MODEL_AND_DATA}
    assert content(output / "model.tar.gz") == {"algo-1": "algo-1\n", "algo-2": "algo-2\n"}
    head = bucket.client.head_object(Bucket=bucket.name, Key=f"{key}/model.tar.gz")
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/key")


def test_uncompressed_results_are_objects_below_a_prefix(
    job: JobFolder, engine: docker.DockerClient, bucket: Bucket
) -> None:
    key = to(job, bucket, CompressionType="NONE")
    script(job, f"{LEAVE}; exit 3", hosts=1)
    done = job.shoal("run", "--endpoint-url", bucket.endpoint_url, env=bucket.environment, cwd=job.path)
    assert done.returncode == 1, done.stderr  # what a failed job has left goes there too
    assert bucket.content() == {f"{key}/model/algo-1": b"algo-1\n", f"{key}/data/d/algo-1": b"1\n"}
    assert job.described["ModelArtifacts"] == {"S3ModelArtifacts": f"s3://{bucket.name}/{key}/model"}


def test_results_that_s3_does_not_take_fail_the_job_and_stay_here(
    job: JobFolder, engine: docker.DockerClient, bucket: Bucket
) -> None:
    to(job, bucket)
    script(job, f"echo ready; until [ -e /opt/ml/go ]; do sleep 0.1; done; {LEAVE}", hosts=1)
    process = job.start(env=bucket.environment, cwd=job.path)
    job.until_logged("ready", hosts=("algo-1",))
    bucket.client.delete_bucket(Bucket=bucket.name)
    engine.containers.get(f"{job.request['TrainingJobName']}-algo-1").exec_run(["touch", "/opt/ml/go"])
    assert process.wait(60) == 3
    told = job.described
    assert (told["TrainingJobStatus"], told["SecondaryStatus"]) == ("Failed", "Failed")
    assert told["FailureReason"].startswith("ClientError: the results could not be uploaded: s3://")
    assert "NoSuchBucket" in told["FailureReason"]
    archive = job.run_folder / "output" / "model.tar.gz"
    assert told["ModelArtifacts"] == {"S3ModelArtifacts": archive.as_uri()}
    assert content(archive) == {"algo-1": "algo-1\n"}
    assert process.stderr is not None
    said = process.stderr.read()
    assert "the results are in runs/" in said
    assert "Traceback" not in said


def test_a_bucket_that_is_not_there_begins_nothing(job: JobFolder, engine: docker.DockerClient, bucket: Bucket) -> None:
    to(job, bucket)
    bucket.client.delete_bucket(Bucket=bucket.name)
    done = job.shoal("run", env=bucket.environment, cwd=job.path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert f"cannot be written: there is no bucket {bucket.name}" in done.stderr
    assert not job.run_folder.exists()


def test_with_an_output_folder_nothing_goes_to_s3(job: JobFolder, engine: docker.DockerClient, bucket: Bucket) -> None:
    to(job, bucket)
    script(job, LEAVE, hosts=1)
    done = job.shoal("run", "--output", str(job.path / "runs"), env=bucket.environment)
    assert done.returncode == 0, done.stderr
    assert bucket.content() == {}
    assert content(job.run_folder / "output" / "model.tar.gz") == {"algo-1": "algo-1\n"}


def test_a_folder_that_goes_under_the_user_s_feet_fails_no_job(job: JobFolder, engine: docker.DockerClient) -> None:
    here = job.path / "here"
    here.mkdir()
    script(job, "echo ready; while [ ! -e /opt/ml/input/data/train/go ]; do sleep 0.1; done", hosts=1)
    process = job.start(cwd=here)
    job.until_logged("ready", ("algo-1",))
    here.rmdir()
    (job.path / "data" / "go").touch()
    assert process.wait(timeout=60) == 0
    assert job.described["TrainingJobStatus"] == "Completed"
