"""Check a value against a shape of botocore's service model: every rule the model states, all problems at once.

botocore's own validator checks types, required members and minima only. Maxima, patterns and enums are in the model's
metadata too, and the service refuses what breaks them; so does this. Knows nothing of training jobs.
"""

import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

# A shape of the model and a value: may this value stand although the model refuses it?
Allowed = Callable[[Any, object], bool]

_SHOWN_CHOICES = 12
_SHOWN_CHARACTERS = 80

# The model's patterns are Java's. Python has no \p{..}; these stand in for those the model uses, all inside [].
_SEPARATORS = r" \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_JAVA_CLASSES = {r"\p{Alnum}": "a-zA-Z0-9", r"\p{L}": r"\w", r"\p{N}": r"\d", r"\p{Z}": _SEPARATORS}
_JAVA_DOT = r"[^\n\r\u0085\u2028\u2029]"
_ONE_TOKEN = re.compile(r"\\.|\[(?:\\.|[^]\\])*\]|\.")  # so far as a dot needs it: an escape, a class, a dot

_BOOLEANS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}
_WIDEST = {"integer": 31, "long": 63}  # bits of a whole number on the wire, without its sign

_PYTHON_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "structure": ((dict,), "an object"),
    "map": ((dict,), "an object"),
    "list": ((list,), "a list"),
    "string": ((str,), "a string"),
    "integer": ((int,), "an integer"),
    "long": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where in the value, and what."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@dataclass(frozen=True)
class Rules:
    """Where a check differs from the model: what it allows besides, and minima of the service that the model lacks."""

    allowed: Allowed = lambda _shape, _value: False
    minima: Mapping[str, int] = field(default_factory=dict)  # name of a shape -> its minimum

    def minimum(self, shape: Any) -> int | None:
        """Return the least value, or length, that a shape may have."""
        least: int | None = self.minima.get(shape.name, shape.metadata.get("min"))
        return least


_NO_MORE = Rules()


def check(shape: Any, value: object, rules: Rules = _NO_MORE, path: str = "") -> list[Problem]:
    """Return everything the model has against `value`, in the order of the value."""
    return list(_problems(shape, value, rules, path))


def _problems(shape: Any, value: object, rules: Rules, path: str) -> Iterator[Problem]:
    if rules.allowed(shape, value):
        return
    types, type_words = _PYTHON_TYPES.get(shape.type_name, ((object,), "anything"))
    is_disguised_bool = isinstance(value, bool) and bool not in types and object not in types
    if not isinstance(value, types) or is_disguised_bool:
        yield Problem(path, f"{show(value)} is not {type_words}{_quoting_hint(shape, value)}")
        return
    if isinstance(value, dict) and shape.type_name == "structure":
        yield from _structure(shape, value, rules, path)
    elif isinstance(value, dict):
        yield from _map(shape, value, rules, path)
    elif isinstance(value, list):
        yield from _length(rules, shape, len(value), "items", path)
        for index, item in enumerate(value):
            yield from _problems(shape.member, item, rules, f"{path}[{index}]")
    elif isinstance(value, str):
        yield from _string(rules, shape, value, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _range(rules, shape, value, path)


def _structure(shape: Any, value: dict[object, object], rules: Rules, path: str) -> Iterator[Problem]:
    for key, item in value.items():
        if key in shape.members:
            yield from _problems(shape.members[key], item, rules, _join(path, key))
        else:
            yield Problem(_join(path, key), f"no such field{_suggestion(str(key), list(shape.members))}")
    for key in shape.required_members:
        if key not in value:
            yield Problem(_join(path, key), "is required and missing")


def _map(shape: Any, value: dict[object, object], rules: Rules, path: str) -> Iterator[Problem]:
    yield from _length(rules, shape, len(value), "entries", path)
    for key, item in value.items():
        for problem in _problems(shape.key, key, rules, _join(path, key)):
            yield Problem(problem.path, f"as a key: {problem.text}")
        yield from _problems(shape.value, item, rules, _join(path, key))


def _string(rules: Rules, shape: Any, value: str, path: str) -> Iterator[Problem]:
    choices = shape.metadata.get("enum")
    if choices and value not in choices:
        shown = ", ".join(choices) if len(choices) <= _SHOWN_CHOICES else f"{len(choices)} known values"
        yield Problem(path, f"{show(value)} is not one of {shown}{_suggestion(value, choices)}")
        return
    wrong_length = list(_length(rules, shape, len(value), "characters", path))
    yield from wrong_length
    if any("\ud800" <= character <= "\udfff" for character in value):
        yield Problem(path, f"{show(value)} is no text: half of a character is in it")
        return
    pattern = shape.metadata.get("pattern")
    if pattern and not wrong_length and not python_pattern(pattern).fullmatch(value):
        yield Problem(path, f"{show(value)} does not match {pattern}")


def _length(rules: Rules, shape: Any, length: int, unit: str, path: str) -> Iterator[Problem]:
    low, high = rules.minimum(shape), shape.metadata.get("max")
    if low is not None and length < low:
        yield Problem(path, f"has {length} {unit}: at least {low} are needed")
    if high is not None and length > high:
        yield Problem(path, f"has {length} {unit}: at most {high} are allowed")


def _range(rules: Rules, shape: Any, value: float, path: str) -> Iterator[Problem]:
    low, high = rules.minimum(shape), shape.metadata.get("max")
    if (bits := _WIDEST.get(shape.type_name)) is not None:
        low = -(1 << bits) if low is None else low
        high = (1 << bits) - 1 if high is None else high
    if low is not None and value < low:
        yield Problem(path, f"{value} is less than {low}")
    if high is not None and value > high:
        yield Problem(path, f"{value} is more than {high}")


@functools.cache
def python_pattern(java: str) -> re.Pattern[str]:
    """Return the model's (Java) pattern as Python's."""
    # Java's \d, \w and \s are ASCII's. Those that stand in for \p{L} and \p{N} are not, and never beside the others.
    flags = re.NOFLAG if r"\p{L}" in java else re.ASCII
    java = _ONE_TOKEN.sub(lambda token: _JAVA_DOT if token.group() == "." else token.group(), java)
    for name, members in _JAVA_CLASSES.items():
        java = java.replace(name, members)
    return re.compile(java, flags)


def _suggestion(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not close:  # difflib counts a change of case as a change of letter
        by_lower = {name.lower(): name for name in known}
        close = [by_lower[name] for name in difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)]
    return f": did you mean {close[0]}?" if close else ""


def _quoting_hint(shape: Any, value: object) -> str:
    if shape.type_name == "string" and isinstance(value, (bool, int, float, date)):
        return f': write "{str(value).lower() if isinstance(value, bool) else value}"'
    if shape.type_name == "boolean" and isinstance(value, str) and value.lower() in _BOOLEANS:
        return f": write {_BOOLEANS[value.lower()]}, without quotes"
    if shape.type_name in _WIDEST and isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        return f": write {int(value)}, without quotes"
    return ""


def show(value: object) -> str:
    """Return a value as an error shows it: one line, not too long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _join(path: str, key: object) -> str:
    name = str(key) if re.fullmatch(r"[\w-]+", str(key)) else f"[{str(key)!r}]"
    return f"{path}.{name}" if path and not name.startswith("[") else path + name
