"""The `shoal` command: one verb a function, each defined in the room it belongs to."""

import importlib
import sys
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from shoal.console import err
from shoal.errors import ShoalError
from shoal.imports import without_collecting

# Verb -> where its function is, in the order of the help. A verb's module is imported when that verb is asked for:
# `shoal run` begins a second earlier than if it waited for what builds images.
_VERBS = {
    "list": "shoal.image.commands:list_rows",
    "render": "shoal.image.commands:render",
    "lock": "shoal.image.commands:lock",
    "build": "shoal.image.build_command:build",
    "wheel": "shoal.image.wheel_command:wheel",
    "bake": "shoal.image.bake_command:bake",
    "bundle": "shoal.image.bundle.command:command",
    "size": "shoal.image.commands:size",
    "diff": "shoal.image.commands:diff",
    "catalogue": "shoal.image.catalogue.command:catalogue",
    "push": "shoal.image.push.command:push",
    "init": "shoal.job.commands:init",
    "schema": "shoal.job.commands:schema",
    "run": "shoal.job.commands:run",
    "validate": "shoal.job.commands:validate",
    "submit": "shoal.submit.command:submit",
    "status": "shoal.submit.command:status",
    "logs": "shoal.submit.command:logs",
    "stop": "shoal.submit.command:stop",
    "report": "shoal.report.command:report",
    "top": "shoal.report.top_command:top",
    "advise": "shoal.advise.command:advise",
    "serve": "shoal.serve.command:serve",
}


class _Verbs(TyperGroup):
    """The verbs, each loaded when it is asked for; all of them for the help, and to find the one that was meant."""

    def list_commands(self, _ctx: Any) -> list[str]:
        for name in _VERBS:
            self._load(name)
        return list(_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _VERBS:
            return self._load(cmd_name)
        self.list_commands(ctx)
        return None

    def _load(self, name: str) -> Any:
        if name not in self.commands:
            module, _, function = _VERBS[name].partition(":")
            alone = typer.Typer(add_completion=False)
            with without_collecting():
                verb = getattr(importlib.import_module(module), function)
            alone.command(name)(verb)
            self.commands[name] = typer.main.get_command(alone)
        return self.commands[name]


app = typer.Typer(cls=_Verbs, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


@app.callback()
def _shoal() -> None:
    """Build PyTorch training images and run training jobs in them."""


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
