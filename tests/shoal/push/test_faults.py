"""What goes wrong in the middle of a push: the registry dies, is full, drops connections; the user stops it."""

import itertools
import signal
import subprocess
import time
from collections.abc import Callable

import docker
import pytest
from front import Front
from project import REPOSITORY, ROW, Project
from registry_server import RegistryServer

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SMALL, LARGE = 50_000, 60_000_000


def wait_until(count: Callable[[], int], process: subprocess.Popen[str], more_than: int = 0) -> None:
    while count() <= more_than:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def stop_half_way(project: Project, registry: RegistryServer, *arguments: str) -> subprocess.Popen[str]:
    """Begin a push, and kill the registry as soon as it has one layer: the large ones are on their way."""
    project.make_image(SMALL, LARGE, LARGE)
    process = project.start(ROW, "--to", registry.host, *arguments)
    wait_until(registry.blobs_confirmed, process)
    wait_until(registry.bytes_of_uploads, process, more_than=registry.bytes_of_uploads() + 1_000_000)
    registry.kill()
    assert len(registry.blobs_received()) == 1, "too late: more than the small layer had arrived"
    return process


def test_a_registry_killed_half_way_and_a_second_push(project: Project, registry: RegistryServer) -> None:
    process = stop_half_way(project, registry, "--patience", "3")
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (3, "")
    assert stderr.splitlines()[-1] == (
        f"shoal: {registry.host}/{project.names.immutable}: the registry does not answer: Connection refused; nothing"
        f" got through for 3 s ({stderr.rpartition('(')[2].partition(')')[0]}): run the same again to go on from there"
    )
    assert "Traceback" not in stderr
    registry.start()
    assert registry.manifest(REPOSITORY, project.tag("immutable")).status_code == 404
    done = project.push_json("--to", registry.host)
    assert (done["layers_sent"], done["layers_there"]) == (2, 1)
    received = registry.blobs_received()
    assert len(received) == len(set(received)) == 4, "a blob was sent twice"  # three layers and the configuration
    assert registry.manifest(REPOSITORY, project.tag("short")).json()["config"]["digest"] == project.made[-1]


def test_a_registry_killed_half_way_that_comes_back(project: Project, registry: RegistryServer) -> None:
    process = stop_half_way(project, registry)
    registry.start()
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stdout == f"{registry.host}/{project.names.immutable}\n"
    received = registry.blobs_received()
    assert len(received) == len(set(received)) == 4, "a blob was sent twice"
    assert registry.manifest(REPOSITORY, project.tag("short")).json()["config"]["digest"] == project.made[-1]


def test_connections_that_drop_when_the_layers_are_there(project: Project, registry: RegistryServer) -> None:
    """The engine gives a manifest one try: going on is ours."""
    image = project.make_image()
    count = itertools.count()
    front = Front(registry.port, lambda data: data.startswith(b"PUT ") and b"/manifests/" in data and next(count) < 2)
    done = project.push("--to", front.host)
    front.close()
    assert done.returncode == 0, done.stderr
    assert front.broken == 2
    assert done.stderr.count("; 2 of 2 layers are there, ") == 2
    assert "again in 1 s" in done.stderr
    assert "again in 2 s" in done.stderr
    received = registry.blobs_received()
    assert len(received) == len(set(received)) == 3
    assert registry.manifest(REPOSITORY, project.tag("short")).json()["config"]["digest"] == image


def test_a_registry_whose_disk_is_full(
    project: Project, start_registry: Callable[..., RegistryServer], client: docker.DockerClient
) -> None:
    registry = start_registry(disk_mb=4)
    project.make_image(SMALL, 20_000_000)
    done = project.push("--to", registry.host)
    assert (done.returncode, done.stdout) == (3, "")
    last = done.stderr.splitlines()[-1]
    assert last == (
        f"shoal: {registry.host}/{project.names.immutable}: 500 Internal Server Error: unknown error:"
        " No space left on device"
    )
    assert "Traceback" not in done.stderr
    assert registry.manifest(REPOSITORY, project.tag("full")).status_code == 404
    assert not [tag for image in client.images.list() for tag in image.tags if tag.startswith(registry.host)]


def test_ctrl_c(project: Project, registry: RegistryServer, client: docker.DockerClient) -> None:
    project.make_image(SMALL, LARGE, LARGE)
    process = project.start(ROW, "--to", registry.host)
    wait_until(registry.blobs_confirmed, process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr
    assert registry.manifest(REPOSITORY, project.tag("immutable")).status_code == 404
    assert not [tag for image in client.images.list() for tag in image.tags if tag.startswith(registry.host)]
    assert project.push_json("--to", registry.host)["layers_there"] >= 1
