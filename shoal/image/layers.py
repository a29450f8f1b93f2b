"""The layers of an image, each with the step that made it."""

import re
from dataclasses import dataclass
from typing import Any

from docker.models.images import Image


@dataclass(frozen=True)
class Layer:
    """One step of the Dockerfile that added files."""

    bytes: int
    step: str


def layers_of(image: Image) -> list[Layer]:
    """Return the layers of `image` that have files, the lowest first."""
    history: list[dict[str, Any]] = image.history()
    return [Layer(entry["Size"], step(entry["CreatedBy"])) for entry in reversed(history) if entry["Size"]]


def step(created_by: str) -> str:
    """Return what a layer was made by, in a few words: `pip-install.sh 2.13-cpu.txt`."""
    text = re.sub(r"^(RUN )?(\|\d+ )?(/bin/sh -c )?(#\(nop\) )?", "", created_by.removesuffix(" # buildkit"))
    return " ".join(re.sub(r"/build/(scripts/)?", "", text).split()) or "base"
