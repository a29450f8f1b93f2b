"""The `shoal` command: one verb a function, each defined in the room it belongs to."""

import sys
from typing import Any

import typer
from rich.markup import escape

from shoal.advise import command as advise_command
from shoal.console import err
from shoal.errors import ShoalError
from shoal.image import bake_command, build_command, wheel_command
from shoal.image import commands as image
from shoal.image.bundle import command as bundle_command
from shoal.image.catalogue import command as catalogue
from shoal.image.push import command as push_command
from shoal.job import commands as job
from shoal.report import command as report_command
from shoal.serve import command as serve_command
from shoal.submit import command as submit_command

app = typer.Typer(
    help="Build PyTorch training images and run training jobs in them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


app.command("list")(image.list_rows)
app.command("render")(image.render)
app.command("lock")(image.lock)
app.command("build")(build_command.build)
app.command("wheel")(wheel_command.wheel)
app.command("bake")(bake_command.bake)
app.command("bundle")(bundle_command.command)
app.command("size")(image.size)
app.command("diff")(image.diff)
app.command("catalogue")(catalogue.catalogue)
app.command("push")(push_command.push)
app.command("init")(job.init)
app.command("schema")(job.schema)
app.command("run")(job.run)
app.command("validate")(job.validate)
app.command("submit")(submit_command.submit)
app.command("status")(submit_command.status)
app.command("logs")(submit_command.logs)
app.command("stop")(submit_command.stop)
app.command("report")(report_command.report)
app.command("advise")(advise_command.advise)
app.command("serve")(serve_command.serve)


# The parser's own: click's, or typer's copy of it, as the version of typer has it.
_PARSER_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
_WRONG_USE = 2


def main() -> None:
    """Run the command; a `ShoalError`, and what the parser refuses, become one line on stderr."""
    try:
        code = app(standalone_mode=False)
    except ShoalError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except _PARSER_ERROR as error:
        if sentence := _sentence(error):
            _say(sentence)
        sys.exit(_WRONG_USE)
    sys.exit(code if isinstance(code, int) else 0)


def _say(sentence: str) -> None:
    err.print(f"[bold red]shoal:[/] {escape(sentence)}", markup=True)


def _sentence(error: Any) -> str:
    """Return what the parser says, in one line, and where help is; nothing where it has just printed the help."""
    words = " ".join(error.format_message().split()).rstrip(".")
    if not words:
        return ""
    verb = error.ctx.info_name if error.ctx is not None and error.ctx.parent is not None else ""
    return f"{verb}: {words}: `shoal {verb} --help` says more" if verb else f"{words}: `shoal --help` lists the verbs"
