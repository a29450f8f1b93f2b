"""What sshd runs on a worker for every command: load this host's environment, then run the command in it.

Run by path with `python -I -S`, so that it starts in a few milliseconds: no imports beyond the interpreter's own.
"""

from __future__ import annotations

import os
import sys

__all__ = ["load", "save"]


def save(path: str | os.PathLike[str], environment: dict[str, str]) -> None:
    """Write the environment where only this user can read it: it holds the job's credentials."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        for name, value in environment.items():
            # No variable can hold a zero byte, so values with newlines, quotes or anything else survive.
            file.write(os.fsencode(name) + b"=" + os.fsencode(value) + b"\0")


def load(path: str | os.PathLike[str]) -> dict[bytes, bytes]:
    """Read what `save` wrote."""
    with open(path, "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    command = os.environ.get("SSH_ORIGINAL_COMMAND")
    if not command:
        sys.exit("train: only commands are run here, no shells")
    os.execve("/bin/sh", ["sh", "-c", command], load(sys.argv[1]))
