"""Checks of arguments: each raises SMPValueError with one sentence of where, which argument, its value, what may be."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from .exceptions import SMPValueError

_LONGEST = 60


def shown(value: Any) -> str:
    """The value as a sentence shows it: on one line, and not the whole of a tensor."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({type(value).__name__})"


def refuse(where: str, name: str, value: Any, allowed: str) -> NoReturn:
    """Raise: `where` is a function of the API, `name` its argument."""
    raise SMPValueError(f"{where}: {name} is {shown(value)}: it must be {allowed}")


def flag(where: str, name: str, value: Any) -> bool:
    """The value as a bool; scripts give 0 and 1 of their command lines too."""
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        refuse(where, name, value, "True or False")
    return bool(value)


def whole(where: str, name: str, value: Any, least: int) -> int:
    """The value, a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        refuse(where, name, value, f"a whole number of at least {least}")
    return value


def positive(where: str, name: str, value: Any) -> float:
    """The value, a number above 0, perhaps infinite."""
    if not_negative(where, name, value, "a positive number") == 0:
        refuse(where, name, value, "a positive number")
    return float(value)


def not_negative(where: str, name: str, value: Any, allowed: str = "a number of at least 0") -> float:
    """The value, a number of at least 0, perhaps infinite; `allowed` says what it must be where that is more."""
    # Written so that a NaN fails.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        refuse(where, name, value, allowed)
    return float(value)


def function(where: str, name: str, value: Any) -> None:
    """The value can be called."""
    if not callable(value):
        refuse(where, name, value, "a function")


def path(where: str, name: str, value: Any) -> str:
    """The value, the path of a file or folder, as text."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        refuse(where, name, value, "a path")
    if not os.fspath(value):
        refuse(where, name, value, "a path that is not empty")
    return os.fspath(value)
