"""Where the image's bytes are, and that a build over its budget leaves no tag."""

import re
from pathlib import Path

import docker
import pytest
from rich.console import Console

from shoal.errors import ShoalError
from shoal.image import build, size
from shoal.image.progress import Progress
from shoal.image.versions import Flavour, Versions

pytestmark = pytest.mark.image

ROOT = Path(__file__).resolve().parents[2]


def test_layers_and_packages_account_for_every_byte(
    client: docker.DockerClient, image: str, versions: Versions, row_name: str, flavour: Flavour
) -> None:
    found = size.sizes(client, versions, row_name, ROOT, flavour)
    assert found.image == image
    assert sum(layer.bytes for layer in found.layers) == pytest.approx(found.bytes, rel=0.01)
    files = sum(sum(group.values()) for group in found.packages.values())
    assert 0.97 * found.bytes < files <= found.bytes
    assert next(iter(found.packages["python"])) == "torch"
    smp = {"shoal-smp"} if versions.row(row_name).smp else set()
    train = {"shoal-entrypoint", "boto3"} if flavour == "sagemaker" else set()
    assert {"shoal-smddp", *smp, *train} <= set(found.packages["python"])
    assert {"openssh-server", "libc6"} <= set(found.packages["debian"])


def test_an_image_over_its_budget_is_refused(
    client: docker.DockerClient, image: str, versions: Versions, row_name: str
) -> None:
    small = versions.row(row_name).model_copy(update={"size_mb": 500})
    tight = versions.model_copy(update={"rows": {**versions.rows, row_name: small}})
    with (
        Progress(Console(quiet=True)) as progress,
        pytest.raises(ShoalError, match=rf"{re.escape(row_name)}: \d+ MB, more than its budget of 500 MB \+ 5%"),
    ):
        build.build(client, tight, row_name, ROOT, progress)
