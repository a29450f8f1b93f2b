"""Whose line it is, where several ranks share one stream: `[algo-1:3] ` before each line."""

from __future__ import annotations

import re

__all__ = ["Tagger"]

_STARTS = re.compile(rb"(?:\A|(?<=[\r\n]))(?=[^\r\n])")
# A line that does not end by then is passed on in pieces: memory is bounded, and nobody reads such a line.
_LONGEST_LINE = 64 * 1024


class Tagger:
    """Call it with each piece of a stream; it holds back an unfinished line, so that ranks do not cut each other's."""

    def __init__(self, tag: str) -> None:
        self._tag = tag.encode()
        self._carry = b""

    def __call__(self, chunk: bytes) -> bytes:
        """The whole lines that there are now. A carriage return ends one too: progress bars must move."""
        data = self._carry + chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - cut > _LONGEST_LINE:
            data += b"\n"
            cut = len(data)
        self._carry = data[cut:]
        return _STARTS.sub(lambda _: self._tag, data[:cut])

    def rest(self) -> bytes:
        """What the stream ended with, as a line of its own."""
        return self(b"\n") if self._carry else b""
