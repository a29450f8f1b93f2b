"""The tag grammar that job specs and SDKs parse."""

import re
from pathlib import Path

from shoal.image.names import names
from shoal.image.versions import load

ROW = load(Path(__file__).resolve().parents[3] / "versions.yaml").row("2.13-cpu")
# How the SageMaker Python SDK takes an image name apart (its framework, tag and Python version).
SDK = re.compile(r"^(?:sagemaker(?:-rl)?-)?(pytorch)(?:-)?(scriptmode|training)?:(.*)-(.*?)-(py2|py3\d*)(?:.*)$")


def test_tags() -> None:
    tags = names(ROW, "0123456789abcdef")
    assert tags.short == "pytorch-training:2.13.0-cpu-py311"
    assert tags.full == "pytorch-training:2.13.0-cpu-py311-debian12-sagemaker"
    assert tags.immutable == "pytorch-training:2.13.0-cpu-py311-debian12-sagemaker-0123456789ab"


def test_the_sdk_can_read_them() -> None:
    match = SDK.match(names(ROW, "0" * 12).full)
    assert match is not None
    assert match.groups() == ("pytorch", "training", "2.13.0", "cpu", "py311")
