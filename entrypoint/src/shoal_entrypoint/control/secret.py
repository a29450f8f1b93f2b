"""The job's secret: where it is from, how two hosts prove to each other that they know it, and what ranks get of it.

hmac and hashlib are imported where they are used: most jobs have no secret, and each import costs milliseconds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Mapping

from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError

__all__ = ["LEADER", "NAMES", "SAME_EVERYWHERE", "WORKER", "Session", "find", "for_ranks", "new_nonce", "read_nonce"]

NAMES = ("SHOAL_JOB_SECRET", "SHOAL_JOB_SECRET_FILE")
SAME_EVERYWHERE = "SHOAL_JOB_SECRET or SHOAL_JOB_SECRET_FILE must give the same secret to every host of the job"
LEADER, WORKER = b"leader", b"worker"

_TEXT, _FILE = NAMES
_THEIRS = ("SMDDP_JOB_SECRET", "SMDDP_JOB_SECRET_FILE")
_NONCE_BYTES = 32
_NONCE = re.compile("[0-9a-f]{64}")
_LARGEST_FILE = 64 * 1024
_READABLE_BY_ALL = 0o004


def find(environ: Mapping[str, str], say: bool = True) -> bytes | None:
    """The secret, if the launcher gave one; `say`: warn about a file that everybody may read."""
    text, name = environ.get(_TEXT), environ.get(_FILE)
    if text is not None and name is not None:
        raise JobError(f"{_TEXT} and {_FILE} are both set: one of them was expected")
    if text is not None:
        secret, source = text, _TEXT
    elif name is not None:
        secret, source = _first_line(name, say), f"{_FILE}: {name}"
    else:
        return None
    if not secret.strip():
        raise JobError(
            f"{source}: is empty. Give every host the same secret (openssl rand -hex 32 makes one), or none."
        )
    return os.fsencode(secret)


def _first_line(name: str, say: bool) -> str:
    try:
        with Path(name).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            line = file.read(_LARGEST_FILE).partition(b"\n")[0]
    except OSError as error:
        raise JobError(f"{_FILE}: {name}: cannot be read: {error.strerror}") from None
    if say and mode & _READABLE_BY_ALL:
        log(f"{_FILE}: {name}: everybody may read it (mode {mode & 0o777:04o}); 0400 keeps it to its owner")
    return os.fsdecode(line.rstrip(b"\r"))


def for_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """SMDDP_JOB_SECRET, unless the user has set one.

    It is made from the job's secret and not the same: a key that signs two protocols lets one forge the other.
    """
    secret = find(environ, say=False)
    if secret is None or any(name in environ for name in _THEIRS):
        return {}
    return {_THEIRS[0]: _hmac(secret, b"shoal smddp").hex()}


def new_nonce() -> str:
    """A number that was never used before."""
    return os.urandom(_NONCE_BYTES).hex()


def read_nonce(message: Mapping[str, Any]) -> str | None:
    """The other side's, if it sent one."""
    nonce = message.get("nonce")
    return nonce if isinstance(nonce, str) and _NONCE.fullmatch(nonce) else None


class Session:
    """One connection's keys, one for each direction. They come out equal only for two sides with the same secret, the
    same two nonces and the same host name.
    """

    def __init__(self, secret: bytes, role: bytes, host: str, worker_nonce: str, leader_nonce: str) -> None:
        context = b"\n".join((host.encode(), worker_nonce.encode(), leader_nonce.encode()))
        keys = {each: _hmac(secret, b"shoal control 1\n" + each + b"\n" + context) for each in (LEADER, WORKER)}
        self._mine = keys[role]
        self._theirs = keys[WORKER if role == LEADER else LEADER]
        self._sent = self._received = 0

    def sign(self, line: bytes) -> bytes:
        """The next line to send: its tag, a blank, itself."""
        tag = _tag(self._mine, self._sent, line)
        self._sent += 1
        return tag + b" " + line

    def verify(self, signed: bytes) -> bytes | None:
        """The line, if the other side has sent it as its next one."""
        import hmac

        tag, _, line = signed.partition(b" ")
        expected = _tag(self._theirs, self._received, line)
        self._received += 1
        return line if hmac.compare_digest(tag, expected) else None


def _tag(key: bytes, number: int, line: bytes) -> bytes:
    return _hmac(key, number.to_bytes(8, "big") + line).hex().encode()


def _hmac(key: bytes, text: bytes) -> bytes:
    import hmac

    return hmac.new(key, text, "sha256").digest()
