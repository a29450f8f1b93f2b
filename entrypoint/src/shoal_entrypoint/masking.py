"""Secrets out of what people read: logs, failure files, reports. Pure functions; nothing here looks anything up.

A value is hidden by the name it has (`HF_TOKEN`, `--db-password`) or, whatever its name, where it is a URL with a
password in it. A name errs towards hiding: a token that is none costs a reader a second, one that is costs a company.
"""

from __future__ import annotations

import re
from typing import Callable, Sequence

__all__ = ["HIDDEN", "is_secret", "mask", "mask_command", "mask_text"]

HIDDEN = "******"

# Anywhere in a name, its `_`, `-` and `.` left out.
_PARTS = ("secret", "password", "passwd", "passphrase", "credential", "apikey", "accesskey", "privatekey", "authkey")
# Whole words of a name: max_tokens, tokenizer and author hide nothing.
_WORDS = {"token", "pwd", "pass", "auth", "authorization", "private", "cookie", "signature"}
_KINDS_OF_KEY = {"encryption", "signing", "ssh", "account", "license", "wandb"}  # ..._KEY
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/?#@\"']+@")
_NAME = r"[A-Za-z_][A-Za-z0-9_.-]{0,200}"
_QUOTED = r"\"[^\"]*\"|'[^']*'"
# A comma ends a value only where another name follows it: a=1,b=x.
_ASSIGNED = re.compile(rf"(?<![\w-])(-{{0,2}}({_NAME})=)(?:{_QUOTED}|(?:(?!,{_NAME}=)[^\s\"'])+)")
_OPTION = re.compile(rf"(?<!\S)(--?({_NAME})\s+)(?:{_QUOTED}|[^\s\"'-]\S*)")
_JSON = re.compile(rf"(([\"'])({_NAME})\2\s*:\s*)(?:{_QUOTED})")


def is_secret(name: str) -> bool:
    """Whether a variable, option or hyperparameter of this name holds what nobody should read."""
    words = [word.lower() for word in _WORD.findall(name)]
    joined = "".join(words)
    if any(part in joined for part in _PARTS) or any(word in _WORDS or word.endswith("token") for word in words):
        return True
    return any(word == "key" and before in _KINDS_OF_KEY for before, word in zip(words, words[1:]))


def mask(name: str, value: str) -> str:
    """`value` as it may be shown. An empty value stays empty: that it is missing is worth knowing."""
    if value and is_secret(name):
        return HIDDEN
    return _URL.sub(rf"\1{HIDDEN}@", value)


def mask_text(text: str) -> str:
    """Free text: passwords of URLs; `NAME=value`, `--name value` and `"name": "value"` with the name of a secret."""
    for pattern, place in ((_ASSIGNED, 2), (_OPTION, 2), (_JSON, 3)):
        text = pattern.sub(_hider(place), text)
    return _URL.sub(rf"\1{HIDDEN}@", text)


def _hider(place: int) -> Callable[[re.Match[str]], str]:
    """Replaces what follows group 1 if group `place` is the name of a secret."""
    return lambda found: found.group(1) + HIDDEN if is_secret(found.group(place)) else found.group(0)


def mask_command(argv: Sequence[str]) -> list[str]:
    """A command line: `NAME=value`, `--name=value`, and the value that follows `--name`."""
    shown: list[str] = []
    for before, word in zip(["", *argv], argv):
        name, equals, _ = word.partition("=")
        if before.startswith("-") and "=" not in before and is_secret(before) and not word.startswith("-"):
            shown.append(HIDDEN)
        elif equals and " " not in name and is_secret(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(mask_text(word))
    return shown
