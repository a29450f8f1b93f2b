"""`shoal bake`: prints docker-bake.json."""

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import ShoalError
from shoal.image import host_settings
from shoal.image.bake import bake_file
from shoal.image.build import tags_of
from shoal.image.commands import project_root
from shoal.image.lock import lock_names
from shoal.image.targets import Target, locked
from shoal.image.versions_file import load


def bake(
    rows: Annotated[list[str] | None, typer.Argument(metavar="ROW", help="rows of versions.yaml; else all")] = None,
    registry: Annotated[str | None, typer.Option(help="goes before every tag: registry.example:5000/team")] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="write this machine's package settings to this folder, and name them as secrets")
    ] = None,
) -> None:
    """Print docker-bake.json: the images as targets of `docker buildx bake`."""
    root = project_root()
    versions = load(root / "versions.yaml")
    named = dict.fromkeys(map(versions.find, rows or []))
    images = [Target(row, flavour) for row in named or versions.rows for flavour in versions.row(row).flavours]
    if not named:
        images = locked(images, versions, root)
    names = {image: tags_of(versions, image.row, root, image.flavour) for image in images}
    suites = dict.fromkeys(versions.bases[versions.row(image.row).base].suite for image in images)
    written = {} if secrets is None else {suite: _write(secrets.resolve() / suite, suite) for suite in suites}
    for image in images:  # a Dockerfile mounts them, empty where nobody has fetched wheels
        for lock in lock_names(image.row, versions.row(image.row)):
            (root / "wheelhouse" / Path(lock).stem).mkdir(parents=True, exist_ok=True)
    typer.echo(json.dumps(bake_file(versions, names, registry, written), indent=2))


def _write(folder: Path, suite: str) -> list[str]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # proxies and indexes can carry passwords
        return host_settings.write_secrets(folder, suite)
    except OSError as error:
        raise ShoalError(f"--secrets: {folder}: cannot be written: {error.strerror}") from error
