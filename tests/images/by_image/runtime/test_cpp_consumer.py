"""A C++ program made with the tools of the builder stage, against smddp as `cmake --install` ships it."""

import io
from collections.abc import Iterator
from pathlib import Path

import containers
import docker
import pytest
from rich.console import Console

from shoal.image.progress import Progress
from shoal.image.stages import build_stage
from shoal.image.versions import Versions

pytestmark = pytest.mark.image

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = """
set -e
cmake -G Ninja -S /smddp_core -B /tmp/core -DSMDDP_BUILD_TORCH=OFF -DSMDDP_BUILD_SHARED=ON -DCMAKE_INSTALL_LIBDIR=lib
cmake --build /tmp/core
cmake --install /tmp/core --prefix /tmp/prefix
rm -r /tmp/core
cmake -G Ninja -S /consumer -B /tmp/consumer -DCMAKE_PREFIX_PATH=/tmp/prefix
cmake --build /tmp/consumer
mkdir /tmp/meet
/tmp/consumer/consumer 0 2 /tmp/meet >/tmp/other &
/tmp/consumer/consumer 1 2 /tmp/meet >/tmp/mine
wait $!
echo "sums:" $(cat /tmp/other /tmp/mine)
"""


@pytest.fixture
def builder(client: docker.DockerClient, image: str, versions: Versions, row_name: str) -> Iterator[str]:
    """Return the stage of the row's Dockerfile that has the compiler; where `image` was built here, it is cached."""
    tag = f"shoal-test-builder:{row_name}"
    progress = Progress(Console(file=io.StringIO()))
    build_stage(client, versions, row_name, ROOT, "smddp-builder", ["--tag", tag], progress)
    yield tag
    client.images.remove(tag, force=True)


def test_a_consumer_is_built_and_two_ranks_of_it_run(client: docker.DockerClient, builder: str) -> None:
    consumer = Path(__file__).parent / "consumer"
    volumes = {
        str(ROOT / "smddp_core"): {"bind": "/smddp_core", "mode": "ro"},
        str(consumer): {"bind": "/consumer", "mode": "ro"},
    }
    done = containers.run(client, ["sh", "-c", SCRIPT], image=builder, volumes=volumes, limit_seconds=900)
    assert done.rc == 0, done.out + done.err
    assert done.out.splitlines()[-1] == "sums: 3 3"
