"""Which tests run for which image, and that no folder of them is left out of all."""

from pathlib import Path

import pytest
from kinds import PARENTS, kinds

from shoal.image.versions import Row
from shoal.image.versions_file import load

HERE = Path(__file__).parent
CPU = load(HERE.parents[1] / "versions.yaml").row("2.13-cpu")


def row(**changes: str) -> Row:
    return CPU.model_copy(update=changes)


@pytest.mark.parametrize(
    ("one", "flavour", "expected"),
    [
        (row(), "sagemaker", ["os", "debian", "runtime", "cpu", "sagemaker"]),
        (row(), "ec2", ["os", "debian", "runtime", "cpu", "ec2"]),
        (row(device="gpu"), "sagemaker", ["os", "debian", "runtime", "gpu", "sagemaker"]),
        (row(device="gpu", base="ubuntu20.04"), "ec2", ["os", "ubuntu", "runtime", "gpu", "ec2"]),
    ],
)
def test_an_image_has_its_own_tests_and_those_of_what_it_is_made_from(
    one: Row, flavour: str, expected: list[str]
) -> None:
    assert kinds(one, flavour) == expected


def test_every_folder_is_of_a_kind() -> None:
    """The tests in a misspelt folder would never run."""
    folders = {path.name for path in (HERE / "by_image").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - PARENTS.keys() == set()


def test_every_row_has_kinds() -> None:
    versions = load(HERE.parents[1] / "versions.yaml")
    assert all(kinds(one, "sagemaker")[0] == "os" for one in versions.rows.values())
