"""Images that people make `FROM` this one."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import containers
import docker
import pytest
from rich.console import Console
from small_job import train

from shoal.image import buildkit
from shoal.image.progress import Progress

pytestmark = pytest.mark.image

TAG = "shoal-test-extension:1"
# No compiler is needed for it, and no network.
DOCKERFILE = """\
FROM {image}
RUN --mount=type=bind,target=/context pip install --no-index --no-cache-dir /context/tiny_extra-1.0-py3-none-any.whl
"""
METADATA = "Metadata-Version: 2.1\nName: tiny-extra\nVersion: 1.0\nRequires-Dist: torch\nRequires-Dist: numpy\n"


def write_wheel(folder: Path) -> None:
    with zipfile.ZipFile(folder / "tiny_extra-1.0-py3-none-any.whl", "w") as archive:
        info = "tiny_extra-1.0.dist-info"
        archive.writestr("tiny_extra.py", "import torch\n")
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def extended(client: docker.DockerClient, image: str, tmp_path: Path) -> Iterator[str]:
    context = tmp_path / "context"
    context.mkdir()
    write_wheel(context)
    (context / "Dockerfile").write_text(DOCKERFILE.format(image=image))
    progress = Progress(Console(file=io.StringIO()))
    buildkit.build(["--no-cache", "--tag", TAG, str(context)], tmp_path / "build.log", progress)
    yield TAG
    client.images.remove(TAG, force=True)


def test_a_job_in_an_image_of_two_lines(run: containers.Run, extended: str, tmp_path: Path) -> None:
    ml = tmp_path / "ml"
    done = train(run, ml, {"module": "tiny_extra"}, image=extended)
    assert done.rc == 0, done
    assert "/opt/venv/lib/python" in done.out
    assert "tiny_extra.py" in done.out
    assert (ml / "model" / "total").read_text() == "3.0"
    assert run(["pip", "check"], image=extended).rc == 0
