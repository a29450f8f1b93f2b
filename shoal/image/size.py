"""Where an image's bytes are, layer by layer and package by package, and whether they are within the row's budget."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import ImageNotFound

from shoal.errors import ShoalError
from shoal.image.build import candidate_of, record_stem, tags_of
from shoal.image.layers import Layer, layers_of
from shoal.image.measure import ask
from shoal.image.versions import Flavour, Versions


@dataclass(frozen=True)
class Sizes:
    """An image's bytes: as the engine counts them (layers), and as its files are now (packages)."""

    image: str
    bytes: int
    budget_bytes: int
    layers: list[Layer]
    packages: dict[str, dict[str, int]]  # python, debian, other: name -> bytes, largest first

    def as_json(self) -> dict[str, Any]:
        """Return it as the JSON object that `shoal size --json` prints."""
        return asdict(self)

    @property
    def replaced_bytes(self) -> int:
        """Bytes that a later layer has replaced or removed: they are still pulled."""
        return max(0, self.bytes - sum(sum(group.values()) for group in self.packages.values()))


def sizes(
    client: docker.DockerClient, versions: Versions, name: str, root: Path, flavour: Flavour = "sagemaker"
) -> Sizes:
    """Look into the image of row `name` that today's sources make, else into the one whose build failed last.

    Raises:
        ShoalError: there is neither.
    """
    row = versions.row(name)
    candidate = candidate_of(record_stem(name, flavour), root)
    image = _first_there(client, tags_of(versions, name, root, flavour).immutable, candidate)
    if image is None:
        raise ShoalError(f"{name}: no image of today's sources: run `shoal build {name}`")
    layers = layers_of(client.images.get(image))
    packages = ask(client, image, (root / "images" / "probe_size.py").read_text())
    total = int(client.images.get(image).attrs["Size"])
    return Sizes(image, total, row.size_mb * 1_000_000, layers, packages)


def _first_there(client: docker.DockerClient, *tags: str) -> str | None:
    for tag in tags:
        try:
            client.images.get(tag)
        except ImageNotFound:
            continue
        return tag
    return None


def dump(found: Sizes) -> str:
    """Return it as JSON."""
    return json.dumps(found.as_json())
