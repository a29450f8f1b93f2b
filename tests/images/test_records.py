"""What a build writes beside the image, for people who have to know what is in it."""

import json
from pathlib import Path

import docker
import pytest
from testinfra.host import Host

pytestmark = pytest.mark.image

STATE = Path(__file__).resolve().parents[2] / ".shoal"


def test_the_bill_of_materials_is_that_of_this_image(client: docker.DockerClient, image: str, host: Host) -> None:
    read = json.loads((STATE / "2.13-cpu.cdx.json").read_text())
    assert read["metadata"]["component"]["version"] == image.partition(":")[2]
    components = {one["purl"].partition("@")[0]: one for one in read["components"]}
    assert components["pkg:pypi/torch"]["version"].startswith("2.13.0")
    assert components["pkg:deb/debian/openssh-server"]["version"] == host.package("openssh-server").version
    unlicensed = [name for name, one in components.items() if name.startswith("pkg:pypi") and not one.get("licenses")]
    assert unlicensed == []
