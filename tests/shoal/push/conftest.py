"""What the tests of `shoal push` share: a registry, a project with a small image, and nothing left of either."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from shoal import engine

sys.path.insert(0, str(Path(__file__).parent))  # test modules are imported by file: they find helpers no other way

from project import Project
from registry_server import RegistryServer


@pytest.fixture(scope="session")
def client() -> docker.DockerClient:
    return engine.connect()


@pytest.fixture
def start_registry(tmp_path: Path) -> Iterator[Callable[..., RegistryServer]]:
    servers: list[RegistryServer] = []

    def start(**settings: object) -> RegistryServer:
        folder = tmp_path / f"registry-{len(servers)}"
        folder.mkdir()
        servers.append(RegistryServer(folder, **settings))  # type: ignore[arg-type]
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def registry(start_registry: Callable[..., RegistryServer]) -> RegistryServer:
    return start_registry()


@pytest.fixture
def project(tmp_path: Path, client: docker.DockerClient) -> Iterator[Project]:
    made = Project(tmp_path / "project", client)
    yield made
    made.remove_images()
