"""Where an image's bytes are, layer by layer and package by package, and whether they are within the row's budget."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import ImageNotFound

from shoal.errors import ShoalError
from shoal.image.build import content_hash
from shoal.image.measure import ask
from shoal.image.names import names
from shoal.image.versions import Versions


@dataclass(frozen=True)
class Layer:
    """One step of the Dockerfile that added files."""

    bytes: int
    step: str


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


def sizes(client: docker.DockerClient, versions: Versions, name: str, root: Path) -> Sizes:
    """Look into the image of row `name` that today's sources make, else into the one whose build failed last.

    Raises:
        ShoalError: there is neither.
    """
    row = versions.row(name)
    image = _first_there(client, names(row, content_hash(versions, name, root)).immutable, f"shoal-candidate:{name}")
    if image is None:
        raise ShoalError(f"{name}: no image of today's sources: run `shoal build {name}`")
    history: list[dict[str, Any]] = client.images.get(image).history()
    layers = [Layer(entry["Size"], step(entry["CreatedBy"])) for entry in reversed(history) if entry["Size"]]
    packages = ask(client, image, (root / "images" / "probe_size.py").read_text())
    total = int(client.images.get(image).attrs["Size"])
    return Sizes(image, total, row.size_mb * 1_000_000, layers, packages)


def step(created_by: str) -> str:
    """Return what a layer was made by, in a few words: `pip-install.sh 2.13-cpu.txt`."""
    text = re.sub(r"^(RUN )?(\|\d+ )?(/bin/sh -c )?(#\(nop\) )?", "", created_by.removesuffix(" # buildkit"))
    return " ".join(re.sub(r"/build/(scripts/)?", "", text).split()) or "base"


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
