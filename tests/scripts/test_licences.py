"""What is handed on of the three distributions has the licence's text, which they may only be handed on with."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LICENSE = ROOT / "LICENSE"
BACK_ENDS = {
    "entrypoint": "setuptools.build_meta",
    "modelparallel": "setuptools.build_meta",
    "smddp_core": "scikit_build_core.build",
}
# The compiled part makes no difference here.
SETTINGS = {"smddp_core": {"wheel.cmake": "false"}}
BUILD = "import {0}; {0}.build_sdist({1!r}); {0}.build_wheel({1!r}, {2!r})"


@pytest.mark.parametrize("name", BACK_ENDS)
def test_each_distribution_has_the_licence(tmp_path: Path, name: str) -> None:
    """A copy in each folder, not a link: an image's build has nothing beside the folder, and an sdist keeps a link."""
    assert (ROOT / name / "LICENSE").read_bytes() == LICENSE.read_bytes(), f"once more: cp LICENSE {name}/"
    source, made = tmp_path / name, tmp_path / "made"
    shutil.copytree(ROOT / name, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    made.mkdir()
    program = BUILD.format(BACK_ENDS[name], str(made), SETTINGS.get(name))
    done = subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    with tarfile.open(sdist) as archive:
        (member,) = (one for one in archive.getmembers() if one.name.count("/") == 1 and one.name.endswith("/LICENSE"))
        text = archive.extractfile(member)
        assert text is not None
        assert text.read() == LICENSE.read_bytes()
    with zipfile.ZipFile(wheel) as archive_of_wheel:
        names = archive_of_wheel.namelist()
        (inside,) = (one for one in names if ".dist-info/" in one and one.endswith("/LICENSE"))
        assert archive_of_wheel.read(inside) == LICENSE.read_bytes()
