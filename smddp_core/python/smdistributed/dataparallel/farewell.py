"""What a rank that ends tells the others, so that their errors name the cause and not only its effect."""

from __future__ import annotations

import sys
import traceback

__all__ = ["handling", "reason", "reason_in_child"]

# Other ranks show it in the middle of a line of theirs.
_MOST_BYTES = 400


def reason() -> str:
    """``its process ended with ValueError: ...`` after an uncaught exception, else ``""``. One short line.

    For functions of ``atexit``: the interpreter has printed the exception and remembers it.
    """
    # A prompt goes on after an exception.
    return "" if hasattr(sys, "ps1") else _ended_with(getattr(sys, "last_value", None))


def reason_in_child() -> str:
    """The same in a process of ``multiprocessing``, for what it calls while the exception is on its way out."""
    return _ended_with(_on_its_way())


def handling() -> str:
    """`` while handling ValueError: ...`` in an ``except`` or ``finally`` that an exception led to, else ``""``."""
    error = _on_its_way()
    return "" if error is None else f" while handling {_in_a_line(error)}"


def _on_its_way() -> BaseException | None:
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):  # of torch.multiprocessing.spawn, which has sent the cause to the parent
        return (error.__context__ or error) if error.code else None
    return error


def _ended_with(error: BaseException | None) -> str:
    return "" if error is None else f"its process ended with {_in_a_line(error)}"


def _in_a_line(error: BaseException) -> str:
    said = traceback.format_exception_only(type(error), error)
    line = next((line for line in said if not line.startswith(" ")), type(error).__name__).splitlines()[0]
    printable = "".join(letter if letter.isprintable() else "?" for letter in line)
    shown = printable.encode()[:_MOST_BYTES].decode(errors="ignore")
    return shown + ("..." if len(shown) < len(printable) else "")
