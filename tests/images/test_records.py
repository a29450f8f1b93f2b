"""What a build writes beside the image, for people who have to know what is in it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from shoal.image.build import record_stem
from shoal.image.versions import Flavour, Row

pytestmark = pytest.mark.image

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bill(image: str, row_name: str, flavour: Flavour) -> dict[str, Any]:
    """Return the bill of materials; a clone that did not build the image has to ask for it first."""
    command = [sys.executable, "-m", "shoal", "build", row_name, "--flavour", flavour]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    read: dict[str, Any] = json.loads((ROOT / ".shoal" / f"{record_stem(row_name, flavour)}.cdx.json").read_text())
    return read


def test_the_bill_of_materials_is_that_of_this_image(image: str, host: Host, row: Row, bill: dict[str, Any]) -> None:
    assert bill["metadata"]["component"]["version"] == image.partition(":")[2]
    components = {one["purl"].partition("@")[0]: one for one in bill["components"]}
    assert components["pkg:pypi/torch"]["version"].startswith(row.torch)
    assert components["pkg:deb/debian/openssh-server"]["version"] == host.package("openssh-server").version
    unlicensed = {name for name, one in components.items() if name.startswith("pkg:pypi") and not one.get("licenses")}
    assert unlicensed <= {"pkg:pypi/cuda-toolkit"}  # a name for its dependencies, with nothing in it
