"""The sizes that the kernel takes: 128 KiB for one argument or variable, and a bound for all of them together.

A job of thousands of hosts meets the first in its SM_* variables, which list every host several times.
"""

from __future__ import annotations

import os
from typing import Mapping, Sequence

from shoal_entrypoint.log import log

__all__ = ["LONGEST", "leave_out_long", "too_long"]

LONGEST = 32 * 4096 - 1  # MAX_ARG_STRLEN without the zero byte at its end


def leave_out_long(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that fit. What the others say is in the job's files too, and few scripts ask for it."""
    kept = {name: value for name, value in variables.items() if len(name) + len(os.fsencode(value)) < LONGEST}
    for name in variables:
        if name not in kept:
            size = len(os.fsencode(variables[name]))
            log(f"{name} is left out: its {size} bytes are more than a variable may have ({LONGEST}, with its name)")
    return kept


def too_long(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Why execve says E2BIG, for a line that a user can act on."""
    for before, word in zip(["", *argv], argv):
        if len(os.fsencode(word)) > LONGEST:
            what = f"the value of {before}" if before.startswith("-") else f"the argument {word[:40]!r}..."
            return f"{what} has {len(os.fsencode(word))} bytes, and Linux takes {LONGEST}: put it into a file"
    for name, value in env.items():
        size = len(name) + 1 + len(os.fsencode(value))
        if size > LONGEST:
            return f"the variable {name} has {size} bytes, and Linux takes {LONGEST}: put it into a file"
    words = sum(len(os.fsencode(word)) + 1 for word in argv)
    variables = sum(len(name) + len(os.fsencode(value)) + 2 for name, value in env.items())
    return f"its arguments ({words} bytes) and variables ({variables} bytes) are too long together (see ulimit -s)"
