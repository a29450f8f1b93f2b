"""What a rank that ends tells the others, so that their errors name the cause and not only its effect."""

from __future__ import annotations

import sys
import traceback

__all__ = ["reason"]

# Other ranks show it in the middle of a line of theirs.
_MOST_CHARACTERS = 200


def reason() -> str:
    """``its process ended with ValueError: ...`` after an uncaught exception, else ``""``. One short line.

    For functions of ``atexit``: the interpreter has printed the exception and remembers it.
    """
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):  # a prompt goes on after an exception
        return ""
    said = traceback.format_exception_only(type(error), error)
    line = next((line for line in said if not line.startswith(" ")), type(error).__name__).splitlines()[0]
    shown = line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 3] + "..."
    return f"its process ended with {shown}".encode(errors="backslashreplace").decode()
