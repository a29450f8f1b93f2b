"""`shoal wheel ROW`: smddp's wheel for the torch of a row, for people who bring their own container."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import docker
import typer

from shoal import engine
from shoal.console import err, out
from shoal.errors import ShoalError
from shoal.image.children import Children
from shoal.image.commands import project_root
from shoal.image.progress import Progress, Reporter
from shoal.image.stages import build_stage
from shoal.image.versions import Versions
from shoal.image.versions_file import load

# Exporting the builder itself would write its whole file system.
_STAGE = "\nFROM scratch AS smddp-wheel\nCOPY --from=smddp-builder /wheels/ /\n"


def wheel(
    row: Annotated[str, typer.Argument(metavar="ROW", help="a row of versions.yaml, e.g. 2.13-cpu")],
    output: Annotated[Path, typer.Option(help="folder to put it in")] = Path("dist"),
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")] = False,
) -> None:
    """Compile smddp against a row's torch, and write its wheel to a folder."""
    root = project_root()
    versions = load(root / "versions.yaml")
    name = versions.find(row)
    _writable(output)
    client = engine.connect()
    with Progress(err) as progress:
        wheels = export(client, versions, name, root, output, progress)
    if as_json:
        out.print_json(json.dumps({"row": name, "wheels": [str(path) for path in wheels]}))
    else:
        for path in wheels:
            typer.echo(path)


def export(
    client: docker.DockerClient, versions: Versions, name: str, root: Path, output: Path, progress: Reporter
) -> list[Path]:
    """Build the wheel of row `name` as its image does; return where it is below `output`.

    Raises:
        ShoalError: a step failed; `output` is as it was then.
    """
    children = Children()
    try:
        return _export(client, versions, name, root, output, progress, children)
    except KeyboardInterrupt:
        children.stop()
        raise ShoalError("stopped: no wheel was written", exit_code=130) from None


def _export(
    client: docker.DockerClient,
    versions: Versions,
    name: str,
    root: Path,
    output: Path,
    progress: Reporter,
    children: Children,
) -> list[Path]:
    with TemporaryDirectory(prefix=".shoal-", dir=output) as folder:
        to = ["--output", f"type=local,dest={folder}"]
        build_stage(client, versions, name, root, "smddp-wheel", to, progress, children, added=_STAGE)
        return [Path(shutil.move(path, output / path.name)) for path in sorted(Path(folder).glob("*.whl"))]


def _writable(folder: Path) -> None:
    """Make the folder before anything takes time.

    Raises:
        ShoalError: it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ShoalError(f"--output {folder}: cannot be made: {error.strerror}") from error
