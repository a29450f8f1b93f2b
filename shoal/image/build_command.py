"""`shoal build`: which images to build, and what is said about them."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from shoal import engine
from shoal.console import err, out
from shoal.errors import ShoalError
from shoal.image.board import Board
from shoal.image.build_many import Outcome, Workshop, build_many
from shoal.image.bundle.bundle import default_path
from shoal.image.bundle.offline import Offline, opened
from shoal.image.children import Children
from shoal.image.commands import project_root
from shoal.image.names import FLAVOURS
from shoal.image.targets import Target, choose, locked
from shoal.image.versions import Versions
from shoal.image.versions_file import load

STOPPED = 130  # what a shell reports of a program that Ctrl-C ended


def build(
    rows: Annotated[list[str] | None, typer.Argument(metavar="ROW", help="rows of versions.yaml")] = None,
    every: Annotated[bool, typer.Option("--all", help="every row of versions.yaml")] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="only rows whose inputs have no image here yet (of all, if none is named)")
    ] = False,
    flavours: Annotated[
        list[str] | None, typer.Option("--flavour", help=f"{' or '.join(FLAVOURS)}; may be said twice")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="how many images are built at once")] = 2,
    offline: Annotated[bool, typer.Option("--offline", help="ask no network: take all from a bundle")] = False,
    bundle: Annotated[
        Path | None, typer.Option(metavar="FILE", help="what `shoal bundle` made [default: .shoal/ROW.bundle.tar]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")] = False,
) -> None:
    """Build, measure and tag images; one of the same content is not built again."""
    root = project_root()
    versions = load(root / "versions.yaml")
    targets = choose(versions, rows or [], every=every or (changed and not rows), flavours=flavours or FLAVOURS[:1])
    if every or not rows:
        targets = locked(targets, versions, root)
    with from_bundle(versions, targets, root, bundle, offline=offline) as source:
        shop = Workshop(engine.connect(), versions, root, Children(), source)
        wanted = [target for target in targets if not changed or shop.missing(target)]
        if changed:
            err.print(f"{len(targets) - len(wanted)} of {len(targets)} unchanged")
        with Board(err, [target.label for target in wanted]) as board:
            outcomes = build_many(shop, wanted, jobs, board)
    one = rows is not None and len(rows) == len(targets) == 1 and not changed
    _print(outcomes, as_json=as_json, one=one)
    _finish(outcomes)


@contextlib.contextmanager
def from_bundle(
    versions: Versions, targets: Sequence[Target], root: Path, bundle: Path | None, *, offline: bool
) -> Iterator[Offline | None]:
    """Check and unpack the bundle of an offline build, for as long as that takes; yield None for any other.

    Raises:
        ShoalError: the arguments do not go together, or the bundle is not whole or not of this row as it is now.
    """
    if not offline:
        if bundle is not None:
            raise ShoalError("build: --bundle FILE is for --offline: add it, or leave the bundle out")
        yield None
        return
    if len(targets) != 1:
        raise ShoalError(f"build: --offline builds one image from one bundle, not {len(targets)}: name one row")
    row = targets[0].row
    path = bundle or default_path(root, row)
    if path.is_file():
        err.print(f"checking {escape(str(path))}")
    with opened(path, versions, row, root) as unpacked:
        yield unpacked


def _print(outcomes: Sequence[Outcome], *, as_json: bool, one: bool) -> None:
    built = [outcome.built for outcome in outcomes if outcome.built]
    if len(outcomes) > 1:
        err.print(summary(outcomes))
    if as_json and one:
        if built:
            out.print_json(json.dumps(built[0].manifest()))
    elif as_json:
        out.print_json(json.dumps({"images": [outcome.as_json() for outcome in outcomes]}))
    else:
        for image in built:
            for tag in image.names.every:
                typer.echo(tag)


def summary(outcomes: Sequence[Outcome]) -> Table:
    """Return how every image ended, as a table."""
    table = Table("image", "result", Column("MB", justify="right"), Column("seconds", justify="right"))
    table.box, table.pad_edge = None, False
    colours = {"failed": "bold red", "stopped": "yellow", "built": "green"}
    for outcome in outcomes:
        size = f"{outcome.built.size_bytes / 1e6:.0f}" if outcome.built else "-"
        colour = colours.get(outcome.result, "none")
        table.add_row(escape(outcome.target.label), f"[{colour}]{outcome.result}[/]", size, f"{outcome.seconds:.0f}")
    return table


def _finish(outcomes: Sequence[Outcome]) -> None:
    """End the command.

    Raises:
        ShoalError: an image was not built.
    """
    if any(outcome.result == "stopped" for outcome in outcomes):
        raise ShoalError("stopped: what was not finished has no tag; a second run continues", exit_code=STOPPED)
    failed = [outcome for outcome in outcomes if outcome.result == "failed"]
    if failed and len(outcomes) == 1:
        raise ShoalError(failed[0].error or "failed", exit_code=failed[0].exit_code)
    if failed:
        labels = ", ".join(outcome.target.label for outcome in failed)
        raise ShoalError(f"{len(failed)} of {len(outcomes)} images not built: {labels}", exit_code=1)
