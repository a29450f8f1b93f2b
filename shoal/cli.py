"""The `shoal` command: one verb a function, each defined in the room it belongs to."""

import sys

import typer
from rich.markup import escape

from shoal.console import err
from shoal.errors import ShoalError
from shoal.image import commands as image
from shoal.job import commands as job

app = typer.Typer(
    help="Build PyTorch training images and run training jobs in them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


app.command("list")(image.list_rows)
app.command("render")(image.render)
app.command("lock")(image.lock)
app.command("build")(image.build)
app.command("size")(image.size)
app.command("diff")(image.diff)
app.command("run")(job.run)
app.command("validate")(job.validate)


def main() -> None:
    """Run the command; a `ShoalError` becomes one line on stderr and its exit code."""
    try:
        app()
    except ShoalError as error:
        err.print(f"[bold red]shoal:[/] {escape(str(error))}", markup=True)
        sys.exit(error.exit_code)
