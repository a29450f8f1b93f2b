"""Fixtures: a valid request, a job's folder, and an engine with a 2 MB image whose `train` does what $SCRIPT says.

The image is made by the test, without a network, from a static busybox (Debian package busybox-static). It shows how
the runner treats hosts; what happens inside a training image is the business of other tests.
"""

import copy
import hashlib
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test modules are imported by file: they find helpers no other way
from job_folder import JobFolder, things_of
from tiny_image import IMAGE, root_file_system

REQUEST = {
    "TrainingJobName": "job",
    "RoleArn": "arn:aws:iam::000000000000:role/local",
    "AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File"},
    "InputDataConfig": [
        {
            "ChannelName": "train",
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "file://data"}},
        }
    ],
    "OutputDataConfig": {"S3OutputPath": "file://runs"},
    "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 120},
}


@pytest.fixture
def request_() -> dict[str, Any]:
    """A valid request of two hosts and one channel."""
    return copy.deepcopy(REQUEST)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobFolder]:
    """A folder with a valid job in it, of a name no other test has."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("hello\n")
    request = copy.deepcopy(REQUEST)
    request["TrainingJobName"] = f"test-{uuid.uuid4().hex[:10]}"
    folder = JobFolder(tmp_path, request)
    yield folder
    for process in folder.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


@pytest.fixture(scope="session")
def image() -> str:
    """The tag of the tiny image, in the engine."""
    content = root_file_system()
    digest = hashlib.sha256(content).hexdigest()
    client = docker.from_env()
    if not any(have.labels.get("digest") == digest for have in client.images.list(IMAGE)):
        changes = ["ENV PATH=/bin", f"LABEL digest={digest}"]
        client.api.import_image_from_data(content, repository=IMAGE.split(":")[0], tag="1", changes=changes)
    client.close()
    return IMAGE


@pytest.fixture
def engine(image: str, job: JobFolder) -> Iterator[docker.DockerClient]:
    """The engine, with the tiny image; the test fails if containers or networks of its job are left in it."""
    client = docker.from_env()
    yield client
    left = things_of(client, job.request["TrainingJobName"])
    for thing in left:
        thing.remove(**({"force": True} if hasattr(thing, "kill") else {}))
    client.close()
    assert not left


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """The address of an S3 server."""
    from bucket import s3_server  # it takes a second to import

    with s3_server() as address:
        yield address


@pytest.fixture
def bucket(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket that no other test has, and the environment to find it."""
    from bucket import KEYS, Bucket

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    made = Bucket(f"test-{uuid.uuid4().hex[:10]}", s3_address)
    made.client.create_bucket(Bucket=made.name)
    return made
