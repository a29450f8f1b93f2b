"""Only an engine of this machine can mount this machine's folders."""

import docker
import pytest

from shoal.job.docker_hosts import is_local


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("unix:///var/run/docker.sock", True),
        ("tcp://127.0.0.1:2375", True),
        ("tcp://localhost:2375", True),
        ("tcp://192.0.2.1:2375", False),
    ],
)
def test_addresses_the_sdk_takes(address: str, expected: bool) -> None:
    client = docker.DockerClient(base_url=address, version="1.41")  # a version given: no question is asked
    assert is_local(client.api.base_url) is expected
    client.close()


def test_ssh_is_elsewhere() -> None:
    assert not is_local("http+docker://ssh")  # what the SDK makes of ssh://; it would connect at once
