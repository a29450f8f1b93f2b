"""A build from a bundle, as far as the engine that is there can show it; `make test-offline` shows all of it."""

from pathlib import Path

import docker
import pytest

from shoal import engine
from shoal.console import err
from shoal.errors import ShoalError
from shoal.image import buildkit
from shoal.image.bundle import bundle
from shoal.image.bundle.offline import Offline, debs_folder
from shoal.image.progress import Progress
from shoal.image.render import base_reference

pytestmark = pytest.mark.engine

BASE = "test-offline"


def offline(folder: Path, image: str) -> Offline:
    return Offline("a-row", BASE, image, folder)


@pytest.fixture
def client() -> docker.DockerClient:
    return engine.connect()


@pytest.fixture
def saved(client: docker.DockerClient, tmp_path: Path) -> str:
    """Save a base of one file to a folder as a bundle unpacks it, with nothing else; return its id."""
    (tmp_path / "file").write_text("base")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY file /\n")
    arguments = ["--tag", base_reference(BASE), str(tmp_path)]
    buildkit.build(arguments, tmp_path / "log", Progress(err))
    (tmp_path / "debs").mkdir()
    (tmp_path / "wheels" / "a").mkdir(parents=True)
    (tmp_path / "wheels" / "a" / "b.whl").write_text("wheel")
    image = bundle.save_base(client, BASE, tmp_path / bundle.BASE)
    client.images.remove(base_reference(BASE))
    return image


def test_everything_is_put_in_its_place(client: docker.DockerClient, saved: str, tmp_path: Path) -> None:
    root = tmp_path / "clone"
    said = offline(tmp_path, saved).install(client, root)
    try:
        assert client.images.get(base_reference(BASE)).id == saved
    finally:
        client.images.remove(base_reference(BASE))
    assert said == "base test-offline, 1 wheels, 0 Debian packages"
    assert (root / "wheelhouse" / "a" / "b.whl").read_text() == "wheel"
    assert (root / debs_folder("a-row")).is_dir()


def test_a_base_that_is_no_image_is_refused(client: docker.DockerClient, tmp_path: Path) -> None:
    (tmp_path / bundle.BASE).write_text("no image")
    with pytest.raises(ShoalError, match=f"{base_reference(BASE)}: the engine does not load") as caught:
        offline(tmp_path, "sha256:" + "0" * 64).install(client, tmp_path)
    assert "\n" not in str(caught.value)


def test_no_step_has_a_network(client: docker.DockerClient, tmp_path: Path) -> None:
    """Without the arguments there is an interface more, so it is they that take it away."""
    if not client.images.list(name=base_reference("debian12")):
        pytest.skip("no base in the engine: `make image` makes it")
    (tmp_path / "Dockerfile").write_text(f"FROM {base_reference('debian12')} AS a\nRUN ls /sys/class/net >/net\n")
    (tmp_path / "Dockerfile").open("a").write("FROM scratch\nCOPY --from=a /net /\n")
    seen = []
    for more in ((), Offline.build_arguments):
        output = tmp_path / f"out-{len(more)}"
        arguments = ["--no-cache", *more, "--output", f"type=local,dest={output}", str(tmp_path)]
        buildkit.build(arguments, tmp_path / "log", Progress(err))
        seen.append((output / "net").read_text().split())
    assert seen[0] != ["lo"]
    assert seen[1] == ["lo"]
