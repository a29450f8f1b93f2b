"""A running `shoal serve`, its clients, and requests for it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

IMAGE = "shoal-test-hosts:1"
GROUP = "/aws/sagemaker/TrainingJobs"
ENDED = ("Completed", "Failed", "Stopped")


class Endpoint:
    """`shoal serve` on a state folder; it may be killed and started again."""

    def __init__(self, state: Path, *options: str) -> None:
        self.state, self._options = state, options
        self._process: subprocess.Popen[bytes] | None = None
        self._said = state
        self.url = ""
        self.start()

    def start(self) -> None:
        said = self.state.parent / f"{self.state.name}-{uuid.uuid4().hex[:6]}.err"
        command = [sys.executable, "-m", "shoal", "serve", "--port", "0", "--state", str(self.state), *self._options]
        with said.open("wb") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
        self._process, self._said = process, said
        found: list[str] = []

        def listening() -> bool:
            assert process.poll() is None, said.read_text()
            found[:] = re.findall(r"Listening +(http://\S+?),", said.read_text())
            return bool(found)

        until(listening, "line 'Listening'")
        self.url = found[0]

    def said(self) -> str:
        """Return what the server that was started last has said."""
        return self._said.read_text()

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=60)
            self._process = None

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="eu-west-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
            config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )

    @property
    def sagemaker(self) -> Any:
        return self.client("sagemaker")

    def describe(self, name: str) -> dict[str, Any]:
        described: dict[str, Any] = self.sagemaker.describe_training_job(TrainingJobName=name)
        return described

    def until_ended(self, name: str) -> dict[str, Any]:
        until(lambda: self.describe(name)["TrainingJobStatus"] in ENDED, f"end of {name}")
        return self.describe(name)

    def lines(self, name: str) -> dict[str, list[str]]:
        """Return what each host has printed, as CloudWatch has it."""
        logs = self.client("logs")
        with contextlib.suppress(logs.exceptions.ResourceNotFoundException):
            found = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]
            return {
                stream["logStreamName"].split("/")[1].rpartition("-")[0]: [
                    event["message"]
                    for event in logs.get_log_events(
                        logGroupName=GROUP, logStreamName=stream["logStreamName"], startFromHead=True
                    )["events"]
                ]
                for stream in found
            }
        return {}

    def until_printed(self, name: str, line: str) -> None:
        until(lambda: any(line in said for said in self.lines(name).values()), f"{line!r} of {name}")


def request(script: str, bucket: str, hosts: int = 1) -> dict[str, Any]:
    """Return a request for a job that runs a line of shell on each host and writes to a bucket."""
    return {
        "TrainingJobName": f"test-{uuid.uuid4().hex[:10]}",
        "RoleArn": "arn:aws:iam::000000000000:role/local",
        "AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": f"s3://{bucket}/results"},
        "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": hosts, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 120},
        "Environment": {"SCRIPT": script},
    }


def channel(name: str, uri: str) -> dict[str, Any]:
    return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}}


def runs_of(folder: Path) -> Iterator[int]:
    """Yield the process ids of every `shoal run` whose job file is below a folder."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[3:4] == [b"run"] and words[4].startswith(os.fsencode(folder)):
                    yield int(process.name)


def until(condition: Callable[[], bool], what: str, seconds: float = 300) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.2)
