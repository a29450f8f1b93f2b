"""The verb `shoal catalogue`."""

import datetime as dt
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from shoal.console import err, out
from shoal.errors import ShoalError
from shoal.image.catalogue import page
from shoal.image.catalogue.entries import as_json, entries
from shoal.image.catalogue.manifests import read
from shoal.image.commands import project_root
from shoal.image.versions import Versions
from shoal.image.versions_file import load


def catalogue(
    manifests: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[MANIFEST...]", help="manifests of images (default: those that are in .shoal/)"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="the page to write (default: .shoal/catalogue.html)")
    ] = None,
    registry: Annotated[
        str, typer.Option(help="where readers pull from, e.g. 123456789012.dkr.ecr.eu-west-1.amazonaws.com")
    ] = "",
    as_data: Annotated[
        bool, typer.Option("--json", help="print what the page shows as JSON, and write no page")
    ] = False,
) -> None:
    """Write one HTML page of all images: tags, contents, sizes, support, how to use them, what differs."""
    root = project_root()
    versions = load(root / "versions.yaml")
    paths = manifests or of_this_clone(root, versions)
    today = dt.datetime.now(tz=dt.UTC).date()
    found = entries(versions, [read(path) for path in paths], today)
    if as_data:
        out.print_json(json.dumps(as_json(found)))
        return
    written = output or root / ".shoal" / "catalogue.html"
    write(written, page.render(found, today, registry.rstrip("/")))
    built = sum(bool(entry.images) for entry in found)
    images = "1 image" if len(paths) == 1 else f"{len(paths)} images"
    err.print(f"{images}; {built} of {len(found)} rows have one")
    typer.echo(written)


def of_this_clone(root: Path, versions: Versions) -> list[Path]:
    """Return the manifests that `shoal build` has written here, in the order of the rows."""
    stems = [stem for name, row in versions.rows.items() for stem in (name, *(f"{name}-{one}" for one in row.flavours))]
    paths = [root / ".shoal" / f"{stem}.json" for stem in stems]
    return [path for path in paths if path.exists()]


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        ShoalError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            partial = Path(file.name)
            try:
                file.write(text)
                file.flush()
                partial.chmod(0o666 & ~_umask())
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ShoalError(f"{path}: cannot be written: {error.strerror}: name another file with --output") from error


def _umask() -> int:
    """Return the process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
