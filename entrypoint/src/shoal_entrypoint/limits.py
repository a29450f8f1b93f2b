"""The sizes that the kernel takes: 128 KiB for one argument or variable, and a bound for all of them together.

A job of thousands of hosts meets the first in its SM_* variables, which list every host several times.
"""

from __future__ import annotations

import os
from typing import Mapping, Sequence

from shoal_entrypoint.log import log

__all__ = ["LONGEST", "leave_out", "refused"]

LONGEST = 32 * 4096 - 1  # MAX_ARG_STRLEN without the zero byte at its end


def leave_out(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that can be set. What the others say is in the job's files too, and few scripts ask for it."""
    kept: dict[str, str] = {}
    for name, value in variables.items():
        size = len(os.fsencode(name)) + 1 + len(os.fsencode(value))
        if "=" in name or "\0" in name + value:
            log(f"{name!r} is left out: a variable has no = in its name, and no zero byte")
        elif size > LONGEST:
            log(f"{name} is left out: it has {size} bytes, and Linux takes {LONGEST} for a variable")
        else:
            kept[name] = value
    return kept


def refused(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Why execve takes no such arguments and variables, for a line that a user can act on."""
    for before, word in zip(["", *argv], argv):
        what = f"the value of {before[:80]}" if before.startswith("-") else f"the argument {word[:40]!r}"
        if "\0" in word:
            return f"{what} has a zero byte, which no argument can have"
        if len(os.fsencode(word)) > LONGEST:
            return f"{what} has {len(os.fsencode(word))} bytes, and Linux takes {LONGEST}: put it into a file"
    for name, value in env.items():
        size = len(name) + 1 + len(os.fsencode(value))
        if size > LONGEST:
            return f"the variable {name} has {size} bytes, and Linux takes {LONGEST}: put it into a file"
    words = sum(len(os.fsencode(word)) + 1 for word in argv)
    variables = sum(len(name) + len(os.fsencode(value)) + 2 for name, value in env.items())
    return f"its arguments ({words} bytes) and variables ({variables} bytes) are too long together (see ulimit -s)"
