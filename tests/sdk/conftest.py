"""Fixtures: the image that today's sources make, both SDKs, and functions that run a job of each."""

from __future__ import annotations

import contextlib
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Test modules are imported by file: they find helpers no other way.
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "shoal" / "job")]

from bucket import KEYS, Bucket, s3_server  # noqa: E402
from sdk_environments import python_of  # noqa: E402
from sdk_process import Ended, Fit, Sdk, with_archives  # noqa: E402

from shoal import engine  # noqa: E402
from shoal.image.build import content_hash  # noqa: E402
from shoal.image.names import names  # noqa: E402
from shoal.image.versions_file import load  # noqa: E402

NETWORK = "sagemaker-local"  # that both SDKs make, and leave
WORKING_DIRECTORY = "com.docker.compose.project.working_dir"  # a label of every container of compose


@pytest.fixture(scope="session")
def client() -> docker.DockerClient:
    return engine.connect()


@pytest.fixture(scope="session")
def image(client: docker.DockerClient) -> str:
    """Return the tag in users' job specs; it must be of the image that today's sources make."""
    row = "2.13-cpu"
    versions = load(ROOT / "versions.yaml")
    tags = names(versions, row, content_hash(versions, row, ROOT), "sagemaker")
    if not client.images.list(name=tags.immutable):
        pytest.fail(f"no image {tags.immutable}: run `make image ROW={row}`", pytrace=False)
    return str(tags.immutable)


@pytest.fixture(scope="session")
def compose() -> None:
    """Fail early where the SDKs would not find a docker-compose."""
    if not shutil.which("docker-compose"):
        pytest.fail("no docker-compose: on Debian 12, install docker-compose", pytrace=False)


@pytest.fixture(scope="session")
def sdk2(compose: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sdk]:
    sdk = Sdk(python_of("sdk2"), "sdk2", tmp_path_factory.mktemp("sdk2"), **KEYS)
    yield sdk
    sdk.close()


@pytest.fixture(scope="session")
def sdk3(compose: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sdk]:
    """Without any credentials: it needs none."""
    sdk = Sdk(python_of("sdk3"), "sdk3", tmp_path_factory.mktemp("sdk3"))
    yield sdk
    sdk.close()


@pytest.fixture(scope="session")
def no_network_left(client: docker.DockerClient) -> Iterator[None]:
    before = client.networks.list(names=[NETWORK])
    yield
    for network in [] if before else client.networks.list(names=[NETWORK]):
        with contextlib.suppress(docker.errors.APIError):  # another job of an SDK is in it
            network.remove()


@pytest.fixture
def no_containers_left(client: docker.DockerClient, tmp_path: Path, no_network_left: None) -> Iterator[None]:
    """The SDKs leave their stopped containers; those of this test are removed."""
    yield
    for container in client.containers.list(all=True, filters={"label": WORKING_DIRECTORY}, ignore_removed=True):
        if container.labels[WORKING_DIRECTORY].startswith(f"{tmp_path}/"):
            container.remove(force=True, v=True)


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a source folder of the given files."""

    def make(**files: str | bytes) -> Path:
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            path = folder / name
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return make


@pytest.fixture
def fit2(sdk2: Sdk, image: str, tmp_path: Path, no_containers_left: None) -> Fit:
    """Return a function that runs a job by generation 2, as `PyTorch(**estimator).fit(inputs)`."""

    def fit(
        inputs: dict[str, str] | None = None,
        bucket: Bucket | None = None,
        container_config: dict[str, Any] | None = None,
        **estimator: Any,
    ) -> Ended:
        root, results = tmp_path / "root", tmp_path / "results"
        root.mkdir()
        results.mkdir()
        name = f"sdk2-{uuid.uuid4().hex[:8]}"
        at = {"s3_endpoint_url": bucket.endpoint_url, "default_bucket": bucket.name} if bucket else {}
        where = f"s3://{bucket.name}/results" if bucket else f"file://{results}"
        local = {"local_code": bucket is None, "container_root": str(root), "region_name": "us-east-1"}
        if container_config:
            local["container_config"] = container_config
        job = {
            "name": name,
            "session": at,
            "local": local,
            "estimator": {"image_uri": image, "output_path": where, **estimator},
            "inputs": inputs or {},
        }
        ended = sdk2.run(job, tmp_path / "log")

        if bucket:
            found = bucket.content(f"results/{name}/output/")
            archives = {key.rpartition("/")[2]: content for key, content in found.items()}
        else:
            archives = {path.name: path.read_bytes() for path in results.iterdir()}
        return with_archives(ended, archives)

    return fit


@pytest.fixture
def fit3(sdk3: Sdk, image: str, tmp_path: Path, no_containers_left: None) -> Fit:
    """Return a function that runs a job by generation 3, as `ModelTrainer(...).train(inputs)`."""

    def fit(source: dict[str, Any], hosts: int = 1, launcher: str = "", **more: Any) -> Ended:
        root = tmp_path / "root"
        root.mkdir()
        job = {
            "name": "sdk3",
            "root": str(root),
            "image": image,
            "source": source,
            "hosts": hosts,
            "launcher": launcher,
            **{name: more.get(name, {}) for name in ("options", "hyperparameters", "environment", "inputs")},
        }
        ended = sdk3.run(job, tmp_path / "log")
        kept = root / "compressed_artifacts"
        return with_archives(ended, {path.name: path.read_bytes() for path in kept.glob("*")})

    return fit


@pytest.fixture
def bucket(client: docker.DockerClient) -> Iterator[Bucket]:
    """An empty bucket at the end of a network of the engine: containers and this machine find it by one address."""
    network = client.networks.create(f"shoal-test-{uuid.uuid4().hex[:8]}")
    network.reload()
    with s3_server(network.attrs["IPAM"]["Config"][0]["Gateway"]) as url:
        made = Bucket(f"test-{uuid.uuid4().hex[:8]}", url)  # all servers of this process share their buckets
        made.client.create_bucket(Bucket=made.name)
        yield made
    network.remove()
