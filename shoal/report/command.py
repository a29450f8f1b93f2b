"""The verb `shoal report`: reads what a run measured, asks the rules, writes the page and a file for each rule."""

import contextlib
import importlib.util
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.status import Status
from rich.text import Text

from shoal import console
from shoal.errors import ShoalError
from shoal.report.draw import drawing

if TYPE_CHECKING:
    from shoal.report.compare_page import Judged
    from shoal.report.observed import Observed
    from shoal.report.outcome import Outcome

_PACKAGES = ("polars", "matplotlib")
# Where the service puts its own reports.
_FOLDER = Path("rule-output", "ProfilerReport", "profiler-output")
PAGE, RULE_FOLDER = "profiler-report.html", "profiler-reports"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="The folder of a run, with profiler-output/ in it; two are compared.", metavar="RUN_DIR [RUN_DIR]"
        ),
    ],
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
    require_packages("report")
    if len(runs) > 2:
        raise ShoalError(f"report: {len(runs)} runs: give one, or two to compare")
    judged = [_judged(run, patience) for run in runs]
    if len(judged) == 2:
        _compare(runs, judged, output, as_json=as_json)
        return
    run, (_name, seen, outcomes) = runs[0], judged[0]
    if as_json:
        _print({outcome.rule: outcome.as_original() for outcome in outcomes})
        return
    with _writing(output or run / _FOLDER) as folder, _telling("drawing"):
        written = _write(run, folder, seen, outcomes)
    from shoal.report import terminal

    terminal.show(console.err, seen, outcomes)
    typer.echo(written)


def require_packages(verb: str) -> None:
    """Refuse where what these verbs alone need is not installed.

    Raises:
        ShoalError: it is not.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ShoalError(f"{verb}: needs {', '.join(missing)}: pip install 'shoal[report]'", exit_code=3)


def _telling(what: str) -> Status:
    """Show what goes on, on a terminal. Nothing may be printed to stdout meanwhile: Rich would take it to stderr."""
    return console.err.status(Text(what))


def _judged(run: Path, patience: float | None) -> "Judged":
    from shoal.report import read, rules  # imported here: polars takes a part of a second, and other verbs need none

    try:
        with _telling(f"reading {run}"):
            seen = read.read(run)
    except OSError as error:
        raise ShoalError(f"{error.filename or run}: cannot be read: {error.strerror}") from error
    name = seen.job.get("TrainingJobName") or run.resolve().name
    return str(name), seen, rules.judge(seen, rules.chosen(seen.job, patience))


def _compare(runs: list[Path], judged: "list[Judged]", output: Path | None, *, as_json: bool) -> None:
    from shoal.report import compare, compare_page, page

    pair = (judged[0], judged[1])
    found = compare.differences(pair[0][1], pair[1][1])
    if as_json:
        _print({"sentence": compare.sentence(found), "differences": [one.as_json() for one in found]})
        return
    with _writing(output or runs[1] / _FOLDER) as folder:
        written = folder / f"compared-with-{runs[0].resolve().name}.html"
        _put(written, compare_page.render(page.ENVIRONMENT, page.style(), pair, found))
    compare_page.show(console.err, pair, found)
    typer.echo(written)


def _print(content: dict[str, Any]) -> None:
    console.out.print(json.dumps(content, indent=2), markup=False)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    """Make the folder; what cannot be written there or below becomes one line.

    Raises:
        ShoalError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise ShoalError(
            f"{error.filename or folder}: cannot be written: {error.strerror}: name another folder with --output",
            exit_code=3,
        ) from error


def _write(run: Path, folder: Path, seen: "Observed", outcomes: "list[Outcome]") -> Path:
    """Write the page and each rule's file."""
    (folder / RULE_FOLDER).mkdir(exist_ok=True)
    for outcome in outcomes:
        _put(folder / RULE_FOLDER / f"{outcome.rule}.json", json.dumps(outcome.as_original(), indent=2) + "\n")
    with drawing(len(seen.nodes)) as draw:
        from shoal.report import page  # imported here, while the second process does so too

        _put(folder / PAGE, page.render(seen, outcomes, page.links(run, folder), draw))
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
