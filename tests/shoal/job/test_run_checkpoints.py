"""Whole runs of jobs that are interrupted, begin again, and keep checkpoints meanwhile."""

import signal
from pathlib import Path

import docker
import pytest
from bucket import Bucket
from job_folder import LOOP, JobFolder, content, script, until

UP = "4"  # seconds: a script has its handlers by then, also on a machine that is busy
pytestmark = pytest.mark.engine

# Counts its beginnings in a checkpoint; the first time it waits to be told to save.
COUNTS = """
trap 'echo saving; mkdir -p sub; echo $((n + 1)) > sub/n; exit 1' TERM
cd ${KEPT:-/opt/ml/checkpoints}; n=$(cat sub/n 2>/dev/null || echo 0); echo began after $n
[ $n != 0 ] && { cp sub/n /opt/ml/model; exit 0; }
touch /opt/ml/model/lost; while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("where", ["file", "s3"])
def test_an_interrupted_job_goes_on_from_its_checkpoints(
    job: JobFolder, engine: docker.DockerClient, bucket: Bucket, where: str
) -> None:
    uri = "file://kept" if where == "file" else f"s3://{bucket.name}/kept"
    job.request["CheckpointConfig"] = {"S3Uri": uri}
    if where == "s3":
        job.request["CheckpointConfig"]["LocalPath"] = "/mine"
    script(job, COUNTS, hosts=1)
    if where == "s3":
        job.request["Environment"]["KEPT"] = "/mine"
    done = job.shoal("run", "--interrupt-after", UP, env=bucket.environment)
    assert done.returncode == 0, done.stderr
    assert job.log("algo-1").splitlines() == ["began after 0", "saving", "began after 1"]
    assert "SIGTERM to algo-1: interrupted, as --interrupt-after says" in done.stderr
    assert content(job.run_folder / "output" / "model.tar.gz") == {"n": "1\n"}
    stages = [stage["Status"] for stage in job.described["SecondaryStatusTransitions"]]
    assert stages == ["Starting", "Training", "Interrupted", "Starting", "Training", "Uploading", "Completed"]
    if where == "file":
        assert (job.path / "kept" / "sub" / "n").read_text() == "1\n"
    else:
        assert bucket.content() == {"kept/sub/n": b"1\n"}


def test_checkpoints_are_kept_while_the_job_runs(job: JobFolder, engine: docker.DockerClient) -> None:
    (job.path / "kept").mkdir()
    (job.path / "kept" / "before").write_text("old")
    job.request["CheckpointConfig"] = {"S3Uri": "file://kept"}
    job.request["TensorBoardOutputConfig"] = {"S3OutputPath": "file://boards"}
    board = "ls /opt/ml/output/tensorboard; echo 1 > /opt/ml/output/tensorboard/events.$(hostname)"
    script(job, f"trap 'exit 0' TERM; cd /opt/ml/checkpoints; cat before; {board}; echo 1 > $(hostname); {LOOP}")
    process = job.start()
    job.until_logged("ready")
    assert job.log("algo-2").startswith("old")
    until(lambda: all((job.path / "kept" / host).exists() for host in ("algo-1", "algo-2")), "kept checkpoints")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert {path.name for path in (job.path / "kept").iterdir()} == {"before", "algo-1", "algo-2"}
    boards = job.path / "boards" / job.request["TrainingJobName"] / "tensorboard-output"
    assert {path.name for path in boards.iterdir()} == {"events.algo-1", "events.algo-2"}


def test_ctrl_c_during_an_interruption_is_the_end(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, f"trap 'echo saving' TERM; {LOOP}", hosts=1)
    process = job.start("--interrupt-after", UP)
    job.until_logged("saving", hosts=("algo-1",))
    process.send_signal(signal.SIGINT)
    until(lambda: job.log("algo-1").count("saving") > 1, "second SIGTERM")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert job.described["SecondaryStatus"] == "Stopped"


@pytest.mark.parametrize(("attempts", "code", "status"), [(1, 0, "Completed"), (0, 3, "Failed")])
def test_a_job_begins_again_after_its_host_was_lost(
    job: JobFolder, engine: docker.DockerClient, attempts: int, code: int, status: str
) -> None:
    if attempts:
        job.request["RetryStrategy"] = {"MaximumRetryAttempts": attempts}
    job.request["CheckpointConfig"] = {"S3Uri": "file://kept"}
    script(job, f"[ -e /opt/ml/checkpoints/second ] && exit 0; {LOOP}", hosts=1)
    process = job.start()
    job.until_logged("ready", hosts=("algo-1",))
    (job.path / "kept").mkdir()
    (job.path / "kept" / "second").touch()
    engine.containers.get(f"{job.request['TrainingJobName']}-algo-1").remove(force=True)
    assert process.wait(60) == code
    described = job.described
    assert described["TrainingJobStatus"] == status
    stages = [stage["Status"] for stage in described["SecondaryStatusTransitions"]]
    assert ("Restarting" in stages) is bool(attempts)


def test_a_kept_folder_that_cannot_be_written_is_told(job: JobFolder, engine: docker.DockerClient) -> None:
    (job.path / "kept").mkdir()
    (job.path / "kept" / "sub").write_text("a file where a folder is needed")
    job.request["CheckpointConfig"] = {"S3Uri": "file://kept"}
    script(job, "rm /opt/ml/checkpoints/sub; mkdir /opt/ml/checkpoints/sub; echo 1 > /opt/ml/checkpoints/sub/n", 1)
    done = job.shoal("run")
    assert done.returncode == 3
    assert "kept/sub/n cannot be written" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert job.described["TrainingJobStatus"] == "Failed"
    assert Path(job.run_folder / "output" / "model.tar.gz").exists()
