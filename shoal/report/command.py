"""The verb `shoal report`: reads what a run measured, asks the rules, writes the page and a file for each rule."""

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal import console
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.report.observed import Observed
    from shoal.report.outcome import Outcome

_PACKAGES = ("polars", "matplotlib")
# Where the service puts its own reports.
_FOLDER = Path("rule-output", "ProfilerReport", "profiler-output")
PAGE, RULE_FOLDER = "profiler-report.html", "profiler-reports"


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run, with profiler-output/ in it.", metavar="RUN_DIR")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help=f"Where to write (default: RUN_DIR/{_FOLDER}).", metavar="FOLDER"),
    ] = None,
    patience: Annotated[
        float | None, typer.Option(min=0, help="Judge from so many samples on, not the rules' own numbers.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what the rules say as JSON, and write nothing.")
    ] = False,
) -> None:
    """Say what a run's hardware did, which rule fired and what to change: one HTML page, made offline."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ShoalError(f"report: needs {', '.join(missing)}: pip install 'shoal[report]'", exit_code=3)
    from shoal.report import read, rules  # imported here: polars takes a part of a second, and other verbs need none

    seen = read.read(run)
    outcomes = rules.judge(seen, rules.chosen(seen.job, patience))
    if as_json:
        content = {outcome.rule: outcome.as_original() for outcome in outcomes}
        console.out.print(json.dumps(content, indent=2, default=str), markup=False)
        return
    written = _write(run, output or run / _FOLDER, seen, outcomes)
    from shoal.report import terminal

    terminal.show(console.err, seen, outcomes)
    typer.echo(written)


def _write(run: Path, folder: Path, seen: "Observed", outcomes: "list[Outcome]") -> Path:
    """Write the page and each rule's file.

    Raises:
        ShoalError: the folder cannot be written.
    """
    from shoal.report import page

    try:
        (folder / RULE_FOLDER).mkdir(parents=True, exist_ok=True)
        for outcome in outcomes:
            _put(folder / RULE_FOLDER / f"{outcome.rule}.json", json.dumps(outcome.as_original(), indent=2) + "\n")
        _put(folder / PAGE, page.render(seen, outcomes, page.links(run, folder)))
    except OSError as error:
        raise ShoalError(
            f"{error.filename or folder}: cannot be written: {error.strerror}: name another folder with --output",
            exit_code=3,
        ) from error
    return folder / PAGE


def _put(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    options: dict[str, Any] = {"dir": path.parent, "suffix": ".part", "delete": False, "encoding": "utf-8"}
    with tempfile.NamedTemporaryFile("w", **options) as file:
        partial = Path(file.name)
        try:
            file.write(text)
            file.flush()
            partial.chmod(0o644)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
