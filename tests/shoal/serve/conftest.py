"""Fixtures: the tiny image of tests/shoal/job, an endpoint that all tests of a file share, a bucket in it."""

import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import kill
from pathlib import Path

import docker
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test modules are imported by file: they find helpers no other way

from endpoint import Endpoint, runs_of, until  # noqa: E402

_spec = importlib.util.spec_from_file_location("conftest_of_jobs", HERE.parent / "job" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_jobs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_jobs)
image = _jobs.image


@pytest.fixture(scope="module")
def start(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Endpoint]]:
    """Start endpoints; at the end of the file they are ended, and nothing is left of their jobs."""
    started: list[Endpoint] = []

    def one(*options: str, state: Path | None = None) -> Endpoint:
        started.append(Endpoint(state or tmp_path_factory.mktemp("serve") / "state", *options))
        return started[-1]

    yield one
    for endpoint in started:
        endpoint.end()
        for process in runs_of(endpoint.state):
            with suppress(ProcessLookupError):
                kill(process, signal.SIGTERM)
        until(lambda: not list(runs_of(endpoint.state)), "end of its runs")  # noqa: B023


@pytest.fixture(scope="module")
def endpoint(start: Callable[..., Endpoint]) -> Endpoint:
    """An endpoint that runs one job at a time."""
    return start()


@pytest.fixture(scope="module")
def bucket(endpoint: Endpoint) -> str:
    """A bucket with one object, data/x."""
    s3 = endpoint.client("s3")
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.put_object(Bucket="bucket", Key="data/x", Body=b"hello\n")
    return "bucket"


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    """The engine."""
    client = docker.from_env()
    yield client
    client.close()
