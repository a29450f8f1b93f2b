"""A checked bundle put where a build looks: its base in the engine, its wheels and debs beside."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import docker
from docker.errors import DockerException, ImageNotFound

from shoal.errors import ShoalError
from shoal.image.bundle import bundle, dockerfile
from shoal.image.render import base_reference
from shoal.image.versions import Versions


@dataclass(frozen=True)
class Offline:
    """A bundle that has been checked and unpacked."""

    row: str
    base: str
    base_image: str
    folder: Path
    build_arguments: ClassVar[tuple[str, ...]] = ("--network", "none")

    def install(self, client: docker.DockerClient, root: Path) -> str:
        """Put everything in its place; return in words what.

        Raises:
            ShoalError: the engine does not take the base.
        """
        self._load_base(client)
        wheels = sorted((self.folder / "wheels").glob("*/*.whl"))
        for wheel in wheels:
            target = root / "wheelhouse" / wheel.parent.name / wheel.name
            target.parent.mkdir(parents=True, exist_ok=True)
            wheel.replace(target)
        debs = root / debs_folder(self.row)
        shutil.rmtree(debs, ignore_errors=True)
        (self.folder / "debs").replace(debs)
        return f"base {self.base}, {len(wheels)} wheels, {len(list(debs.rglob('*.deb')))} Debian packages"

    def dockerfile(self, text: str) -> str:
        """Return the Dockerfile of the row with the unpacked part of Debian's archive mounted."""
        return dockerfile.with_debs(text, debs_folder(self.row))

    def _load_base(self, client: docker.DockerClient) -> None:
        reference = base_reference(self.base)
        try:
            if client.images.get(reference).id == self.base_image:
                return
        except ImageNotFound:
            pass
        try:
            with (self.folder / bundle.BASE).open("rb") as stream:
                client.images.load(stream)
            # The id is a hash of everything in the image: what was loaded is what was bundled.
            client.images.get(self.base_image).tag(reference)
        except (DockerException, OSError) as error:
            raise ShoalError(
                f"{reference}: the engine does not load the bundle's base: {error}", exit_code=3
            ) from error


@contextlib.contextmanager
def opened(path: Path, versions: Versions, name: str, root: Path) -> Iterator[Offline]:
    """Check the bundle `path` against row `name`, and unpack it for the time of a build.

    Raises:
        ShoalError: it is not a whole bundle of this row as the repository is now.
    """
    wanted = bundle.inputs(versions, name, root)
    state = root / ".shoal"
    state.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="bundle-", dir=state) as folder:
        manifest = bundle.unpack(path, wanted, Path(folder))
        try:
            yield Offline(name, wanted.base, manifest.base_image, Path(folder))
        finally:
            shutil.rmtree(root / debs_folder(name), ignore_errors=True)


def debs_folder(row: str) -> str:
    """Return where, in the build context, a row's part of Debian's archive lies during an offline build."""
    return f"wheelhouse/{row}-debs"
