"""The tag grammar that job specs and SDKs parse."""

import re
from pathlib import Path

import pytest

from shoal.image.names import names
from shoal.image.versions_file import load

VERSIONS = load(Path(__file__).resolve().parents[3] / "versions.yaml")
# How the SageMaker Python SDK takes an image name apart (its framework, tag and Python version).
SDK = re.compile(r"^(?:sagemaker(?:-rl)?-)?(pytorch)(?:-)?(scriptmode|training)?:(.*)-(.*?)-(py2|py3\d*)(?:.*)$")


def test_tags() -> None:
    tags = names(VERSIONS, "2.13-cpu", "0123456789abcdef")
    assert tags.aliases == ("pytorch-training:2.13.0-cpu-py311",)
    assert tags.full == "pytorch-training:2.13.0-cpu-py311-debian12-sagemaker"
    assert tags.immutable == "pytorch-training:2.13.0-cpu-py311-debian12-sagemaker-0123456789ab"
    assert tags.every == (*tags.aliases, tags.full, tags.immutable)


def test_the_tags_of_an_image_for_ec2_say_so() -> None:
    tags = names(VERSIONS, "2.5-gpu", "0123456789abcdef", "ec2")
    assert tags.aliases == ("pytorch-training:2.5.1-gpu-py311-ec2",)
    assert tags.full == "pytorch-training:2.5.1-gpu-py311-cu124-debian12-ec2"


def test_a_row_without_an_alias_has_none() -> None:
    assert names(VERSIONS, "2.5.1-gpu-py311-cu124-ubuntu22.04", "0" * 12).aliases == ()


@pytest.mark.parametrize("row", VERSIONS.rows)
def test_the_sdk_can_read_them(row: str) -> None:
    match = SDK.match(names(VERSIONS, row, "0" * 12).full)
    assert match is not None
    framework, scope, version, device, python = match.groups()
    wanted = VERSIONS.row(row)
    assert (framework, scope, device) == ("pytorch", "training", wanted.device)
    assert (version, python) == (wanted.torch, f"py{wanted.python.replace('.', '')}")


def test_the_sdk_s_short_tags_are_there() -> None:
    """What the SDK asks for: <version>-<cpu|gpu>-<python>, without an operating system."""
    for version, python in (("1.12.0", "py38"), ("2.0.1", "py310"), ("2.5.1", "py311"), ("2.8.0", "py312")):
        for device in ("cpu", "gpu"):
            assert f"{version}-{device}-{python}" in VERSIONS.aliases
