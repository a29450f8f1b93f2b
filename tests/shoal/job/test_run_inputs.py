"""Whole runs of jobs whose data comes from S3, in shares, or through pipes."""

import io
import json
import signal
import tarfile
from typing import Any

import docker
import pytest
from bucket import Bucket
from job_folder import LOOP, JobFolder, script, things_of, until

pytestmark = pytest.mark.engine


def channel(name: str, uri: str, **fields: Any) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, **fields.pop("source", {})}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, **fields}


def test_shares_of_a_bucket_a_manifest_and_pipes(job: JobFolder, engine: docker.DockerClient, bucket: Bucket) -> None:
    bucket.put(**{f"data/{i}": f"<{i}>".encode() for i in range(5)}, m=b'[{"prefix": "s3://BUCKET/data/"}, "4", "0"]')
    bucket.put(m=b'[{"prefix": "s3://%s/data/"}, "4", "0"]' % bucket.name.encode())
    job.request["InputDataConfig"] += [
        channel("share", f"s3://{bucket.name}/data", source={"S3DataDistributionType": "ShardedByS3Key"}),
        channel("named", f"s3://{bucket.name}/m", source={"S3DataType": "ManifestFile"}, InputMode="File"),
        channel("pipe", f"s3://{bucket.name}/data/", InputMode="Pipe"),
        channel("local", "file://data", InputMode="Pipe"),
    ]
    script(
        job,
        "cd /opt/ml/input/data; cat train/x; for d in share named; do echo $(ls $d) $(cat $d/*); done;"
        "cat pipe_0; echo; cat pipe_1 local_0; touch x share/x 2>/dev/null || echo read-only",
    )
    done = job.shoal("run", env=bucket.environment)
    assert done.returncode == 0, done.stderr
    ends = ["0 4 <0><4>", "<0><1><2><3><4>", "<0><1><2><3><4>hello", "read-only"]
    assert job.log("algo-1").splitlines() == ["hello", "0 2 4 <0><2><4>", *ends]
    assert job.log("algo-2").splitlines() == ["hello", "1 3 <1><3>", *ends]
    assert "Downloading  share: 5 objects, 15 B, named: 2 objects, 6 B" in done.stderr
    stages = [stage["Status"] for stage in job.described["SecondaryStatusTransitions"]]
    assert stages == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert sorted(path.name for path in job.run_folder.iterdir()) == ["job.json", "logs", "output"]


def test_code_that_the_sdk_put_into_a_bucket(job: JobFolder, engine: docker.DockerClient, bucket: Bucket) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in (("train.py", b"code"), ("package/part.py", b"part"), (".git/x", b"not this")):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.uid = len(data), 0o644, 1234
            tar.addfile(info, io.BytesIO(data))
    bucket.put(**{"job/source/sourcedir.tar.gz": buffer.getvalue(), "nonsense": b"none"})
    address = f"s3://{bucket.name}/job/source/sourcedir.tar.gz"
    job.request["HyperParameters"] = {"sagemaker_submit_directory": f'"{address}"', "sagemaker_program": '"train.py"'}
    script(
        job, "cd /opt/ml/code; ls -A; cat train.py package/part.py; cat ../input/config/hyperparameters.json", hosts=1
    )
    done = job.shoal("run", env=bucket.environment)
    assert done.returncode == 0, done.stderr
    listed, parameters = job.log("algo-1").split("codepart")
    assert listed.split() == ["package", "train.py"]
    assert json.loads(parameters)["sagemaker_submit_directory"] == '"/opt/ml/code"'
    for key, code, said in (("none", 2, "there is no s3://"), ("nonsense", 3, "is no archive of code")):
        job.request["HyperParameters"] = {"sagemaker_submit_directory": f"s3://{bucket.name}/{key}"}
        done = job.shoal("run", "--job-name", f"{job.request['TrainingJobName']}-{key}", env=bucket.environment)
        assert done.returncode == code, done.stderr
        assert said in done.stderr.splitlines()[-1]


def test_data_that_is_not_there_begins_nothing(job: JobFolder, engine: docker.DockerClient, bucket: Bucket) -> None:
    job.request["InputDataConfig"] = [channel("train", f"s3://{bucket.name}/none")]
    done = job.shoal("run", "--endpoint-url", bucket.endpoint_url)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert f"channel train: there is nothing at s3://{bucket.name}/none" in done.stderr
    assert not job.run_folder.exists()


def test_an_object_that_goes_while_it_is_piped_fails_the_job(
    job: JobFolder, engine: docker.DockerClient, bucket: Bucket
) -> None:
    bucket.put(**{"data/0": b"<0>", "data/1": b"<1>"})
    job.request["InputDataConfig"] = [channel("train", f"s3://{bucket.name}/data", InputMode="Pipe")]
    script(job, f"echo ready; until [ -e /opt/ml/go ]; do sleep 0.1; done; cat /opt/ml/input/data/train_0; {LOOP}", 1)
    process = job.start(env=bucket.environment)
    job.until_logged("ready", hosts=("algo-1",))
    bucket.client.delete_object(Bucket=bucket.name, Key="data/1")
    engine.containers.get(f"{job.request['TrainingJobName']}-algo-1").exec_run(["touch", "/opt/ml/go"])
    assert process.wait(60) == 3
    assert process.stderr is not None
    assert f"s3://{bucket.name}/data/1 cannot be read" in process.stderr.read()
    assert job.described["TrainingJobStatus"] == "Failed"


def test_what_a_killed_run_had_fetched_is_removed(job: JobFolder, engine: docker.DockerClient, bucket: Bucket) -> None:
    bucket.put(**{"data/0": b"<0>"})
    job.request["InputDataConfig"] = [channel("train", f"s3://{bucket.name}/data")]
    script(job, LOOP, hosts=1)
    process = job.start(env=bucket.environment)
    job.until_logged("ready", hosts=("algo-1",))
    process.kill()
    process.wait()
    fetched = job.run_folder / ".input"
    assert fetched.is_dir()
    script(job, "true", hosts=1)
    name = job.request["TrainingJobName"]
    assert job.shoal("run", "--job-name", f"{name}-2", env=bucket.environment).returncode == 0
    until(lambda: not fetched.exists() and not things_of(engine, name), "removed folder and hosts")


def test_ctrl_c_while_data_is_fetched_is_the_end(job: JobFolder, engine: docker.DockerClient, bucket: Bucket) -> None:
    bucket.put(**{"data/0": bytes(20_000_000)})
    job.request["InputDataConfig"] = [channel("train", f"s3://{bucket.name}/data")]
    script(job, LOOP, hosts=1)
    process = job.start(env=bucket.environment)
    assert process.stderr is not None
    assert any("Downloading" in line for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert job.described["SecondaryStatus"] == "Stopped"
    assert not (job.run_folder / ".input").exists()
