"""Bad input: one clear line for each thing that is wrong, exit code 2, nothing started, nothing written."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest
from job_folder import SHOAL, JobFolder, shoal

NO_ENGINE = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}


def misspell(request: dict[str, Any]) -> None:
    request["ResourceConfg"] = {}


def no_channel(request: dict[str, Any]) -> None:
    request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] = "file://nowhere"


def no_source(request: dict[str, Any]) -> None:
    request["HyperParameters"] = {"sagemaker_submit_directory": "file://nowhere"}


def no_program(request: dict[str, Any]) -> None:
    request["HyperParameters"] = {"sagemaker_submit_directory": "file://data", "sagemaker_program": '"train.py"'}


def remote_output(request: dict[str, Any]) -> None:
    request["OutputDataConfig"]["S3OutputPath"] = "https://bucket/runs"


def folder_as_manifest(request: dict[str, Any]) -> None:
    request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3DataType"] = "ManifestFile"


def file_as_checkpoints(request: dict[str, Any]) -> None:
    request["CheckpointConfig"] = {"S3Uri": "file://data/x"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (misspell, "ResourceConfg: no such field: did you mean ResourceConfig?"),
        (
            no_channel,
            "InputDataConfig[0] (train): there is no {folder}/nowhere: "
            "put the data there, or say --channel train=FOLDER",
        ),
        (no_source, "HyperParameters.sagemaker_submit_directory: there is no folder {folder}/nowhere"),
        (no_program, "HyperParameters.sagemaker_program: there is no file {folder}/data/train.py"),
        (
            remote_output,
            "OutputDataConfig.S3OutputPath: 'https://bucket/runs' cannot be written: give s3://, file:// or --output",
        ),
        (folder_as_manifest, "InputDataConfig[0] (train): {folder}/data is no file: ManifestFile needs one"),
        (file_as_checkpoints, "CheckpointConfig.S3Uri: {folder}/data/x is no folder"),
    ],
)
def test_a_wrong_file(job: JobFolder, change: Callable[[dict[str, Any]], None], expected: str) -> None:
    change(job.request)
    done = job.shoal("run", env=NO_ENGINE)
    assert done.returncode == 2
    assert done.stderr == f"shoal: {job.path}/job.json: {expected.format(folder=job.path)}\n"
    assert done.stdout == ""
    assert sorted(path.name for path in job.path.iterdir()) == ["data", "job.json"]


def test_each_problem_has_its_line(job: JobFolder) -> None:
    misspell(job.request)
    job.request["ResourceConfig"]["InstanceCount"] = "two"
    job.request["distribution"] = {"pytorchdpp": {"enabled": True}}
    done = job.shoal("validate")
    assert done.returncode == 2
    lines = sorted(line.removeprefix("shoal: ").split(": ")[1] for line in done.stderr.splitlines())
    assert lines == ["ResourceConfg", "ResourceConfig.InstanceCount", "distribution.pytorchdpp"]


def test_no_file(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "nowhere", {})
    job.write = lambda: tmp_path / "none.json"  # type: ignore[method-assign]
    done = job.shoal("run")
    assert done.returncode == 2
    assert done.stderr == f"shoal: {tmp_path}/none.json: cannot be read: No such file or directory\n"


def test_a_folder_is_no_job_file_but_may_hold_one(job: JobFolder) -> None:
    job.write()
    for folder, hint in ((job.path, f"give {job.path}/job.json"), (job.path / "data", "give a job file")):
        done = shoal("validate", str(folder))
        assert (done.returncode, done.stderr) == (2, f"shoal: {folder}: cannot be read: Is a directory: {hint}\n")


def test_no_engine(job: JobFolder) -> None:
    done = job.shoal("run", env=NO_ENGINE)
    assert done.returncode == 3
    assert "no Docker engine answers" in done.stderr
    assert not job.run_folder.exists()


def test_a_channel_given_twice(job: JobFolder) -> None:
    done = job.shoal("run", "--channel", "train=data", "--channel", "train=other")
    assert (done.returncode, done.stderr) == (2, "shoal: --channel 'train=other': train is given twice\n")


def test_a_path_that_the_engine_cannot_be_told(job: JobFolder) -> None:
    folder = os.fsdecode(os.fsencode(job.path) + b"/\xff")
    Path(folder).mkdir()
    done = job.shoal("run", "--channel", f"train={folder}", "--output", folder)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert "OutputDataConfig.S3OutputPath: " in first
    assert "InputDataConfig[0] (train): " in second
    assert all(
        line.endswith("is not UTF-8: the engine takes no such path: give another name") for line in (first, second)
    )


def test_an_option_for_a_channel_the_job_has_not(job: JobFolder) -> None:
    done = job.shoal("run", "--channel", "trian=data", env=NO_ENGINE)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "--channel: 'trian' is not a channel of this job" in done.stderr


def test_validate_says_what_to_change_before_submitting(job: JobFolder) -> None:
    done = job.shoal("validate", env=NO_ENGINE)
    assert done.returncode == 0
    assert "a valid CreateTrainingJob request" in done.stdout
    assert "InputDataConfig[0].DataSource.S3DataSource.S3Uri, OutputDataConfig.S3OutputPath" in done.stdout


def test_what_is_printed_must_arrive_and_what_is_said_need_not(job: JobFolder) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*SHOAL, "validate", str(job.write())]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (3, "shoal: stdout: cannot be written: No space left on device\n")
        misspell(job.request)
        command = [*SHOAL, "validate", str(job.write())]
        assert subprocess.run(command, stdout=subprocess.PIPE, stderr=full, check=False).returncode == 2


@pytest.mark.engine
def test_no_image(job: JobFolder, engine: docker.DockerClient) -> None:
    job.request["AlgorithmSpecification"]["TrainingImage"] = "shoal-test-hosts:2"
    done = job.shoal("run")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "no image 'shoal-test-hosts:2' on this machine; there is shoal-test-hosts:1" in done.stderr
    assert "`shoal build`" in done.stderr
    assert not job.run_folder.exists()


@pytest.mark.engine
def test_a_name_that_is_taken(job: JobFolder, engine: docker.DockerClient) -> None:
    job.run_folder.mkdir(parents=True)
    done = job.shoal("run")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    name = job.request["TrainingJobName"]
    assert f"{name!r} is taken" in done.stderr
    assert f"--job-name {name}-2" in done.stderr
    assert list(job.run_folder.iterdir()) == []
    job.request["Environment"] = {"SCRIPT": "true"}
    job.request["ResourceConfig"]["InstanceCount"] = 1
    again = job.shoal("run", "--job-name", f"{name}-2", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["TrainingJobName"] == f"{name}-2"
