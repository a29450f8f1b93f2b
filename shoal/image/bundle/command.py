"""`shoal bundle ROW`: everything that a build of the row downloads, in one file."""

import errno
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import docker
import typer

from shoal import engine
from shoal.console import err, out
from shoal.errors import ShoalError
from shoal.image import base, host_settings, render, wheelhouse
from shoal.image.bundle import bundle, debs
from shoal.image.commands import JsonFlag, RowName, project_root
from shoal.image.progress import Progress
from shoal.image.versions import Versions
from shoal.image.versions_file import load


def command(
    row: RowName,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="where to write it [default: .shoal/ROW.bundle.tar]")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Put all that a build of a row downloads into one file, for `shoal build --offline`."""
    root = project_root()
    versions = load(root / "versions.yaml")
    row = versions.find(row)  # a misspelt row should not have to wait for the engine
    path = output or bundle.default_path(root, row)
    _check_writable(path)
    with Progress(err) as progress:
        digest = make(engine.connect(), versions, row, root, path, progress)
    if as_json:
        out.print_json(json.dumps({"bundle": str(path), "bytes": path.stat().st_size, "sha256": digest}))
    else:
        typer.echo(path)


def _check_writable(path: Path) -> None:
    """Find out now, not after minutes of downloads, whether `path` can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        bundle.partial_path(path).touch()
        bundle.partial_path(path).unlink()
    except OSError as error:
        raise ShoalError(f"{path}: cannot be written: {error.strerror}: name another file (--output)") from error


def make(
    client: docker.DockerClient, versions: Versions, name: str, root: Path, output: Path, progress: Progress
) -> str:
    """Fetch what the build of row `name` needs and write it to `output`; return the bundle's SHA-256.

    Raises:
        ShoalError: something cannot be had, or the bundle cannot be written.
    """
    row = versions.row(name)
    state = root / ".shoal"
    state.mkdir(exist_ok=True)
    system = versions.bases[row.base]
    made_for = bundle.inputs(versions, name, root)
    progress.busy(f"base {row.base}")
    origin = base.ensure(client, row.base, system, host_settings.apt_settings(), state / f"{name}-base.log")
    progress.done(f"base {row.base}: {origin}")
    progress.busy("fetching wheels")
    wheelhouse.fetch(name, row, root, state / f"{name}-wheels.log")
    files = bundle.wheels(versions, name, root)
    progress.done(f"wheels: {len(files)}, {_mb(files)} MB")
    with TemporaryDirectory(prefix="bundle-", dir=state) as folder:
        archive_folder = Path(folder) / "debs"
        log = state / f"{name}-debs.log"
        debs.collect(render.render(versions, name, root), system.suite, root, log, progress, archive_folder)
        archive = {str(path.relative_to(folder)): path for path in archive_folder.rglob("*") if path.is_file()}
        progress.done(f"Debian packages: {sum(path.suffix == '.deb' for path in archive.values())}, {_mb(archive)} MB")
        progress.busy("saving the base")
        base_file = Path(folder) / bundle.BASE
        image = bundle.save_base(client, row.base, base_file)
        progress.busy(f"writing {output}")
        digest = bundle.write({**files, **archive, bundle.BASE: base_file}, made_for, image, output)
    progress.done(f"bundle: {output.stat().st_size / 1e6:.0f} MB, SHA-256 {digest}")
    return digest


def _mb(files: dict[str, Path]) -> str:
    return f"{sum(path.stat().st_size for path in files.values()) / 1e6:.0f}"
