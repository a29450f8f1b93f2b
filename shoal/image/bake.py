"""The images as the targets of a docker-bake.json, for people who build with `docker buildx bake`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.image.names import Names
from shoal.image.render import base_reference, rendered_path
from shoal.image.targets import Target
from shoal.image.versions import Versions

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


def bake_file(
    versions: Versions, images: Mapping[Target, Names], registry: str | None, secrets: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the file's content: a target an image; a group a row, a flavour, and all of them.

    `registry` goes before every tag; `secrets` are those of `docker build`, by the suite of the base.
    """
    groups: dict[str, list[str]] = {"default": []}
    targets: dict[str, Any] = {}
    for image, names in images.items():
        base = versions.row(image.row).base
        label = _name(f"{image.row}-{image.flavour}")
        targets[label] = {
            "context": ".",
            # No builder in a container sees the engine's own images, where `shoal build` keeps its bases.
            "contexts": {base_reference(base): f"docker-image://{versions.bases[base].pull}"},
            "dockerfile": rendered_path(image.row, Path()).as_posix(),
            "target": image.flavour,
            "platforms": ["linux/amd64"],
            "tags": [f"{registry.rstrip('/')}/{tag}" if registry else tag for tag in names.every],
            "secret": list(secrets.get(versions.bases[base].suite, ())),
        }
        for group in ("default", image.flavour, _name(image.row)):
            groups.setdefault(group, []).append(label)
    return {"group": {name: {"targets": members} for name, members in groups.items()}, "target": targets}


def _name(text: str) -> str:
    """Return a name that bake takes: it may have no dot."""
    return _NOT_IN_A_NAME.sub("_", text)
