"""Fixtures for tests of the built image: the engine, the image, a container to look around in."""

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import testinfra
from testinfra.host import Host

from shoal import engine
from shoal.image.build import content_hash
from shoal.image.names import names
from shoal.image.versions import Row, load

ROOT = Path(__file__).resolve().parents[2]
NAME = "2.13-cpu"


@pytest.fixture(scope="session")
def client() -> docker.DockerClient:
    return engine.connect()


@pytest.fixture(scope="session")
def row() -> Row:
    return load(ROOT / "versions.yaml").row(NAME)


@pytest.fixture(scope="session")
def image(client: docker.DockerClient, row: Row) -> str:
    """Return the immutable tag of the image that today's sources make; an older image would be a test of the past."""
    versions = load(ROOT / "versions.yaml")
    tag = names(row, content_hash(versions, NAME, ROOT)).immutable
    if not client.images.list(name=tag):
        pytest.fail(f"no image {tag}: run `make image`")
    return tag


@pytest.fixture(scope="session")
def host(client: docker.DockerClient, image: str) -> Iterator[Host]:
    """Return a testinfra host inside a container of the image."""
    container = client.containers.run(image, ["sleep", "infinity"], detach=True, network_disabled=True, init=True)
    try:
        yield testinfra.get_host(f"docker://{container.id}")
    finally:
        container.remove(force=True)
