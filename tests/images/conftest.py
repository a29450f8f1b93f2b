"""Fixtures for tests of a built image: the engine, the image, containers of it.

`--row`, `--flavour` and `--image` (tests/conftest.py) say which image; of by_image/ the folders of its kinds are run.
"""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import testinfra
from testinfra.host import Host

sys.path.insert(0, str(Path(__file__).parent))  # test modules are imported by file: they find helpers no other way
import containers
from kinds import kinds

from shoal import engine
from shoal.errors import ShoalError
from shoal.image.build import content_hash
from shoal.image.names import Names, names
from shoal.image.versions import Flavour, Row, Versions
from shoal.image.versions_file import load

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of kinds that the image is not of; of a foreign image, what is about builds here."""
    if collection_path.parent == HERE and collection_path.name.startswith("test_"):
        return True if config.getoption("--image") else None
    if collection_path.parent != HERE / "by_image":
        return None
    try:
        row = load(ROOT / "versions.yaml").row(config.getoption("--row"))
    except ShoalError as error:
        raise pytest.UsageError(f"--row: {error}") from error
    flavour = config.getoption("--flavour")
    if flavour not in row.flavours:
        raise pytest.UsageError(f"--flavour: the row has {' and '.join(row.flavours)} only, not {flavour}")
    return True if collection_path.name not in kinds(row, flavour) else None


@pytest.fixture(scope="session")
def client() -> docker.DockerClient:
    return engine.connect()


@pytest.fixture(scope="session")
def versions() -> Versions:
    return load(ROOT / "versions.yaml")


@pytest.fixture(scope="session")
def row_name(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--row"))


@pytest.fixture(scope="session")
def flavour(request: pytest.FixtureRequest) -> Flavour:
    chosen: Flavour = request.config.getoption("--flavour")
    return chosen


@pytest.fixture(scope="session")
def row(versions: Versions, row_name: str) -> Row:
    return versions.row(row_name)


@pytest.fixture(scope="session")
def tags(versions: Versions, row_name: str, flavour: Flavour) -> Names:
    """Return what the image of today's sources is called."""
    return names(versions, row_name, content_hash(versions, row_name, ROOT), flavour)


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest, client: docker.DockerClient, tags: Names, row_name: str) -> str:
    """Return the immutable tag of the image that today's sources make; an older image would be a test of the past."""
    image = str(request.config.getoption("--image") or tags.immutable)
    if not client.images.list(name=image):
        pytest.fail(f"no image {image}: run `make image ROW={row_name}`", pytrace=False)
    return image


@pytest.fixture(scope="session")
def host(client: docker.DockerClient, image: str) -> Iterator[Host]:
    """Return a testinfra host inside a container of the image."""
    container = client.containers.run(
        image, ["sleep", "infinity"], entrypoint="", detach=True, network_disabled=True, init=True
    )
    try:
        yield testinfra.get_host(f"docker://{container.id}")
    finally:
        container.remove(force=True)


@pytest.fixture(scope="session")
def run(client: docker.DockerClient, image: str) -> containers.Run:
    """Return a function that runs one command in a new container of the image, as a user's `docker run` would."""
    return functools.partial(containers.run, client, image=image)
