"""The verbs on images: `shoal list`, `render`, `lock`, `size`, `diff`."""

import datetime as dt
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from shoal import engine
from shoal.console import err, out
from shoal.errors import ShoalError
from shoal.image import lock as locking
from shoal.image import render as rendering
from shoal.image import size as sizing
from shoal.image.changes import changes
from shoal.image.versions import Flavour, Versions
from shoal.image.versions_file import load

RowName = Annotated[
    str, typer.Argument(metavar="ROW", help="a row of versions.yaml, e.g. 2.13-cpu, or the tag of its image")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")]


def project_root() -> Path:
    """Return the nearest folder upwards that holds versions.yaml.

    Raises:
        ShoalError: there is none.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "versions.yaml").is_file():
            return folder
    raise ShoalError(f"no versions.yaml in {here} or above it: run this inside a clone of shoal")


def _versions() -> tuple[Path, Versions]:
    root = project_root()
    return root, load(root / "versions.yaml")


def list_rows(as_json: JsonFlag = False) -> None:
    """Show the rows of versions.yaml."""
    _, versions = _versions()
    today = dt.datetime.now(tz=dt.UTC).date()
    if as_json:
        listed = versions.model_dump(mode="json")
        for name, row in versions.rows.items():
            tags = [f"{row.stem}-{flavour}" for flavour in row.flavours]
            listed["rows"][name] |= {"support": row.support(today), "tags": tags}
        out.print_json(json.dumps(listed))
        return
    columns = ("torch", "cuda", "python", "base", "lightning", "openmpi", "ga", "eop")
    table = Table("row", *columns, "support", box=None, pad_edge=False)
    for name, row in versions.rows.items():
        table.add_row(name, *(str(getattr(row, column) or "-") for column in columns), row.support(today))
    out.print(table)


def render(
    row: Annotated[str | None, typer.Argument(metavar="[ROW]", help="print this row's Dockerfile")] = None,
    every: Annotated[bool, typer.Option("--all", help="write every row's Dockerfile to images/rendered/")] = False,
    check: Annotated[bool, typer.Option("--check", help="fail if a committed Dockerfile is out of date")] = False,
) -> None:
    """Turn rows of versions.yaml into Dockerfiles."""
    if (row is not None) + every + check != 1:
        raise ShoalError("render: say one of ROW, --all, --check")
    root, versions = _versions()
    if check:
        rendering.check(versions, root)
    elif row is not None:
        typer.echo(rendering.render(versions, versions.find(row), root), nl=False)
    else:
        for name in versions.rows:
            rendering.rendered_path(name, root).write_text(rendering.render(versions, name, root))


def lock(row: RowName) -> None:
    """Choose the versions of all Python packages of a row anew, and write them with their hashes."""
    root, versions = _versions()
    row = versions.find(row)
    for path in locking.lock(row, versions.row(row), root):
        err.print(f"wrote {path.relative_to(root)}")


def size(
    row: RowName,
    as_json: JsonFlag = False,
    top: Annotated[int, typer.Option(min=1, help="how many packages to show")] = 20,
    flavour: Annotated[Flavour, typer.Option(help="which of the row's images")] = "sagemaker",
) -> None:
    """Show where the bytes of a row's image are: layer by layer, and package by package."""
    root, versions = _versions()
    row = versions.find(row)
    found = sizing.sizes(engine.connect(), versions, row, root, flavour)
    if as_json:
        out.print_json(sizing.dump(found))
        return
    out.print(f"{found.image}\n{_mb(found.bytes)} MB, budget {_mb(found.budget_bytes)} MB\n")
    layers = Table(Column("MB", justify="right"), "layer", box=None, pad_edge=False)
    for layer in found.layers:
        layers.add_row(_mb(layer.bytes), escape(layer.step))
    out.print(layers)
    packages = Table(Column("MB", justify="right"), "package", "of", box=None, pad_edge=False)
    everything = [(size, name, kind) for kind, group in found.packages.items() for name, size in group.items()]
    everything.sort(reverse=True)
    for size_bytes, name, kind in everything[:top]:
        packages.add_row(_mb(size_bytes), escape(name), kind)
    rest = sum(size_bytes for size_bytes, _, _ in everything[top:])
    packages.add_row(_mb(rest), f"{len(everything[top:])} more", "")
    packages.add_row(_mb(found.replaced_bytes), "replaced or removed by a later layer", "")
    out.print()
    out.print(packages)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f}"


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="a row that has been built here, or a manifest file")],
    after: Annotated[str, typer.Argument(metavar="B", help="another one")],
    as_json: JsonFlag = False,
) -> None:
    """Show what differs between two images: versions, packages, size."""
    root, versions = _versions()
    found = changes(_manifest(root, versions, before), _manifest(root, versions, after))
    if as_json:
        out.print_json(json.dumps(found.as_json()))
        return
    out.print(f"{found.before} {_mb(found.size_before)} MB\n{found.after} {_mb(found.size_after)} MB\n")
    table = Table("", "what", "A", "B", box=None, pad_edge=False)
    for one in found.changes:
        table.add_row(one.kind, escape(one.name), one.before or "-", one.after or "-")
    out.print(table if found.changes else "no version differs")


def _manifest(root: Path, versions: Versions, name: str) -> dict[str, Any]:
    path = root / ".shoal" / f"{name}.json" if name in versions.rows else Path(name)
    hint = f"no row has that name either (`shoal list` shows the {len(versions.rows)} there are)"
    if name in versions.rows:
        hint = f"run `shoal build {name}`"
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise ShoalError(f"{path}: cannot be read: {why}: {hint}") from error
    if not isinstance(manifest, dict) or not {"names", "size_bytes", "measured"} <= manifest.keys():
        raise ShoalError(f"{path}: not a manifest of an image: `shoal build` writes them to .shoal/")
    return manifest
