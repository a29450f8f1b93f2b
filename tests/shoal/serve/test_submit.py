"""`shoal submit --to sagemaker` and its other verbs against an endpoint that really runs the jobs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from endpoint import Endpoint, request

TO = ("--to", "sagemaker")
Shoal = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shoal(endpoint: Endpoint) -> Shoal:
    """Run the command as a user of the endpoint does."""
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "eu-west-1"}
    environment = {**os.environ, **keys, "AWS_DEFAULT_REGION": "eu-west-1", "AWS_ENDPOINT_URL": endpoint.url}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "shoal", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    return run


def write(folder: Path, job: dict[str, Any]) -> str:
    (folder / "source").mkdir()
    (folder / "source" / "train.py").write_text("print('hello')\n")
    job["HyperParameters"] = {"sagemaker_program": "train.py", "sagemaker_submit_directory": "file://source"}
    (folder / "job.json").write_text(json.dumps(job))
    return str(folder / "job.json")


def test_a_job_runs_and_its_logs_are_followed(endpoint: Endpoint, bucket: str, shoal: Shoal, tmp_path: Path) -> None:
    job = request("echo hello from $(hostname); sleep 3; echo bye", bucket, hosts=2)
    name = job["TrainingJobName"]
    submitted = shoal("submit", write(tmp_path, job), *TO)
    assert (submitted.returncode, submitted.stderr) == (0, "")
    code = endpoint.client("s3").list_objects_v2(Bucket=bucket, Prefix=f"results/{name}/source/")["Contents"]
    assert [item["Key"] for item in code] == [f"results/{name}/source/sourcedir.tar.gz"]
    followed = shoal("logs", name, *TO, "--follow")
    expected = [f"{host} | {line}" for host in ("algo-1", "algo-2") for line in ("bye", f"hello from {host}")]
    assert sorted(followed.stdout.splitlines()) == expected
    endpoint.until_ended(name)
    ended = shoal("status", name, *TO)
    assert (ended.returncode, ended.stdout) == (0, f"{name}: Completed\n")


def test_a_job_is_stopped(endpoint: Endpoint, bucket: str, shoal: Shoal, tmp_path: Path) -> None:
    job = request("trap 'echo saved; exit 0' TERM; echo ready; while true; do sleep 0.1; done", bucket)
    name = job["TrainingJobName"]
    shoal("submit", write(tmp_path, job), *TO)
    endpoint.until_printed(name, "ready")
    assert shoal("stop", name, *TO).returncode == 0
    endpoint.until_ended(name)
    assert shoal("status", name, *TO).returncode == 130
    assert "algo-1 | saved" in shoal("logs", name, *TO).stdout
