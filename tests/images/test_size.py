"""Where the image's bytes are, and that a build over its budget leaves no tag."""

from pathlib import Path

import docker
import pytest
from rich.console import Console

from shoal.errors import ShoalError
from shoal.image import build, size
from shoal.image.progress import Progress
from shoal.image.versions import load

pytestmark = pytest.mark.image

ROOT = Path(__file__).resolve().parents[2]
NAME = "2.13-cpu"


def test_layers_and_packages_account_for_every_byte(client: docker.DockerClient, image: str) -> None:
    found = size.sizes(client, load(ROOT / "versions.yaml"), NAME, ROOT)
    assert found.image == image
    assert sum(layer.bytes for layer in found.layers) == pytest.approx(found.bytes, rel=0.01)
    files = sum(sum(group.values()) for group in found.packages.values())
    assert 0.97 * found.bytes < files <= found.bytes
    assert next(iter(found.packages["python"])) == "torch"
    assert {"shoal-entrypoint", "shoal-smddp", "boto3"} <= set(found.packages["python"])
    assert {"openssh-server", "openmpi-bin", "libc6"} <= set(found.packages["debian"])


def test_an_image_over_its_budget_is_refused(client: docker.DockerClient, image: str) -> None:
    versions = load(ROOT / "versions.yaml")
    small = versions.rows[NAME].model_copy(update={"size_mb": 500})
    tight = versions.model_copy(update={"rows": {NAME: small}})
    with (
        Progress(Console(quiet=True)) as progress,
        pytest.raises(ShoalError, match=r"2\.13-cpu: \d+ MB, more than its budget of 500 MB \+ 5%"),
    ):
        build.build(client, tight, NAME, ROOT, progress)
