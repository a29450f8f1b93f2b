"""Any command as the entry point: `sagemaker_command`, or SHOAL_COMMAND, is a list of words that no shell ever reads.

Most jobs have none, so this module is imported only by those that do.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, Mapping

from shoal_entrypoint.outcome import JobError

__all__ = ["expand", "parse", "place", "require"]

_LISTED = 20
# $(NAME) as Kubernetes expands it in the command of a container; $$(NAME) stands for itself.
_REFERENCE = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_]*)\)")


def parse(where: str, value: Any) -> tuple[str, ...]:
    """The words of a command: a list of texts, or one text that is split at blanks and quotes as a shell would."""
    words = value
    if isinstance(value, str):
        try:
            words = json.loads(value) if value.lstrip().startswith("[") else shlex.split(value)
        except (ValueError, RecursionError) as error:
            raise JobError(f"{where}: {value!r} cannot be read: {error}") from None
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words) and words[0].strip():
        return tuple(words)
    raise JobError(
        f'{where}: a JSON list of words was expected, such as ["accelerate", "launch", "train.py"], or a text to split'
        f" at blanks, not {value!r}"
    )


def place(words: tuple[str, ...], code: Path, path: str | None) -> tuple[str, ...]:
    """The words as they are started in `code`: a bare name that is not on PATH means the file of that name there."""
    name = words[0]
    if "/" not in name and shutil.which(name, path=path) is None and _is_file(code / name):
        return ("./" + name, *words[1:])
    return words


def require(words: tuple[str, ...], code: Path, path: str | None) -> None:
    """Make sure that the command is there, and executable if it came with the code."""
    name = words[0]
    if "/" not in name:
        if shutil.which(name, path=path) is not None:
            return
    elif _is_file(code / name):
        if not name.startswith("/"):
            (code / name).chmod((code / name).stat().st_mode | 0o111)
        return
    there = sorted(str(file.relative_to(code)) for file in code.glob("**/*") if file.is_file())[:_LISTED]
    raise JobError(
        f"sagemaker_command: {name}: no such command on PATH ({path}) nor file in {code};"
        f" {'files there: ' + ', '.join(there) if there else 'there are no files there'}."
        " Name one of these, or install it (requirements.txt)."
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # longer than a file's name can be, or with a zero byte
        return False


def expand(words: tuple[str, ...], environment: Mapping[str, str]) -> list[str]:
    """Put the values of variables in place of $(NAME); a name that is not set is left as it is."""

    def value(found: re.Match[str]) -> str:
        whole = found.group(0)
        return whole[1:] if found.group(1) else environment.get(found.group(2), whole)

    return [_REFERENCE.sub(value, word) for word in words]
