"""The verb `shoal push`: which images go where, and what is said about it."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import docker
import typer
from docker.errors import ImageNotFound
from rich.table import Table

from shoal import engine
from shoal.console import err, out
from shoal.errors import ShoalError
from shoal.image.build import tags_of
from shoal.image.commands import JsonFlag, project_root
from shoal.image.names import FLAVOURS, Names
from shoal.image.progress import Progress
from shoal.image.push.destination import parse
from shoal.image.push.push import Options, Plan, Push
from shoal.image.targets import choose
from shoal.image.versions_file import load
from shoal.image.wheelhouse import has_locks

To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="REGISTRY",
        envvar="SHOAL_REGISTRY",
        help="HOST\\[:PORT]\\[/PREFIX], or `ecr`: the registry of this account and region",
    ),
]
_WORDS = {"push": "push", "create": "new tag", "move": "move tag", "keep": "there already"}


def push(
    to: To,
    rows: Annotated[list[str] | None, typer.Argument(metavar="[ROW]...", help="rows of versions.yaml")] = None,
    every: Annotated[bool, typer.Option("--all", help="every row that has an image of today's sources here")] = False,
    flavours: Annotated[
        list[str] | None, typer.Option("--flavour", help=f"{' or '.join(FLAVOURS)}; may be said twice")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be done, and do nothing")] = False,
    no_aliases: Annotated[bool, typer.Option("--no-aliases", help="push the immutable tags only")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="where another build of the same sources has the tag, keep that one")
    ] = False,
    patience: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="give up when no layer has got through for so long")
    ] = 120,
    as_json: JsonFlag = False,
) -> None:
    """Push images to a registry; print what to write as image_uri in a job spec."""
    root = project_root()
    versions = load(root / "versions.yaml")
    targets = choose(versions, rows or [], every=every, flavours=flavours or FLAVOURS[: None if every else 1])
    if every:  # what has no lock of its wheels has never been built from today's sources
        targets = [target for target in targets if has_locks(target.row, versions.row(target.row), root)]
    destination = parse(to)
    client = engine.connect()
    images = {target.label: tags_of(versions, target.row, root, target.flavour) for target in targets}
    there = _there(client, images, every=every)
    options = Options(not no_aliases, keep, patience)
    with Progress(err) as progress:
        progress.busy(f"asking {to}")
        pushes = [Push(client, tags, destination, options) for tags in there]
        # Every refusal that can be foreseen comes before the first byte.
        plans = [one.plan() for one in pushes]
        done = [] if dry_run else [one.carry_out(plan, progress) for one, plan in zip(pushes, plans, strict=True)]
    if as_json:
        answers = [{**asdict(plan), "dry_run": True} for plan in plans] if dry_run else [one.as_json() for one in done]
        out.print_json(_json(answers, one=not every and len(targets) == 1))
    elif dry_run:
        _show(plans)
    else:
        for plan in plans:
            typer.echo(plan.image_uri)


def _there(client: docker.DockerClient, images: dict[str, Names], *, every: bool) -> list[Names]:
    """Return the names of the images that the engine has; all must be there unless it is `every` one that is."""
    there = []
    for label, tags in images.items():
        try:
            client.images.get(tags.immutable)
        except ImageNotFound as error:
            if not every:
                missing = f"{label}: no image of today's sources ({tags.immutable})"
                raise ShoalError(f"{missing}: run `shoal build {label.replace(' ', ' --flavour ')}`") from error
        else:
            there.append(tags)
    if not there:
        raise ShoalError("push --all: no row has an image of today's sources here: run `shoal build`")
    return there


def _json(answers: Sequence[dict[str, Any]], *, one: bool) -> str:
    return json.dumps(answers[0] if one else {"images": answers})


def _show(plans: Sequence[Plan]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for plan in plans:
        repository, _, _ = plan.image_uri.rpartition(":")
        if plan.create_repository:
            table.add_row("new repository", repository, "")
        for step in plan.steps:
            before = f"from {step.digest_before}" if step.action == "move" else ""
            table.add_row(_WORDS[step.action], f"{repository}:{step.tag}", before)
    out.print(table)
