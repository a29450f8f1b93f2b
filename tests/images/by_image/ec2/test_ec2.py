"""An image for machines whose user starts the processes: the runtime, and nothing of SageMaker's contract."""

import docker
import pytest
from testinfra.host import Host

from shoal.image.versions import Row

pytestmark = pytest.mark.image


def test_nothing_of_sagemaker(host: Host) -> None:
    assert host.run("command -v train").rc != 0
    assert not host.file("/opt/ml").exists


def test_labels(client: docker.DockerClient, image: str, row: Row, row_name: str) -> None:
    labels = client.images.get(image).labels
    assert (labels["dev.shoal.row"], labels["dev.shoal.flavour"]) == (row_name, "ec2")
    assert labels["org.opencontainers.image.version"] == row.torch
    assert [name for name in labels if name.startswith("com.amazonaws")] == []


def test_the_configuration_leaves_the_command_to_the_user(client: docker.DockerClient, image: str) -> None:
    configuration = client.images.get(image).attrs["Config"]
    assert configuration["Entrypoint"] in (None, [])
    assert configuration["Cmd"] == ["bash"]
    assert configuration.get("User") in (None, "")
