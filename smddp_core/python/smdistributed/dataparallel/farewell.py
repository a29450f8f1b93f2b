"""What a rank that ends tells the others, so that their errors name the cause and not only its effect."""

from __future__ import annotations

import sys
import traceback

__all__ = ["reason"]

# Other ranks show it in the middle of a line of theirs.
_MOST_BYTES = 400


def reason() -> str:
    """``its process ended with ValueError: ...`` after an uncaught exception, else ``""``. One short line.

    For functions of ``atexit``: the interpreter has printed the exception and remembers it.
    """
    # A prompt goes on after an exception.
    return "" if hasattr(sys, "ps1") else _reason(getattr(sys, "last_value", None))


def reason_in_child() -> str:
    """The same in a process of ``multiprocessing``, for what it calls while the exception is on its way out."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):  # of torch.multiprocessing.spawn, which has sent the cause to the parent
        error = error.__context__ if error.code else None
    return _reason(error)


def _reason(error: BaseException | None) -> str:
    if error is None:
        return ""
    said = traceback.format_exception_only(type(error), error)
    line = next((line for line in said if not line.startswith(" ")), type(error).__name__).splitlines()[0]
    printable = "".join(letter if letter.isprintable() else "?" for letter in line)
    shown = printable.encode()[:_MOST_BYTES].decode(errors="ignore")
    return f"its process ended with {shown}" + ("..." if len(shown) < len(printable) else "")
