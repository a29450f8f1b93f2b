"""Whose line it is, where several ranks share one stream: `[algo-1:3] ` before each line.

A line of such a stream holds the text of one rank only. What a rank has written of its line is held back until the
line ends; what is passed on unfinished, because it is long or the rank silent, ends before another rank's line begins.
"""

from __future__ import annotations

import os

__all__ = ["Line", "Lines", "Tagger", "Untagged"]

# Held back of one line at most: memory is bounded.
_LONGEST_LINE = 64 * 1024


class Line:
    """The last line of a stream, if it has no end yet: whose text it is."""

    def __init__(self) -> None:
        self.owner: object = None

    def take(self, owner: object, end: bytes) -> bytes:
        """What must be written before a text of `owner` that ends with `end`."""
        before = b"" if self.owner in (None, owner) else b"\n"
        self.owner = None if end == b"\n" else owner
        return before


class Lines:
    """The last lines of `train`'s stdout and stderr, by their numbers."""

    def __init__(self) -> None:
        out = Line()
        try:
            same = os.path.sameopenfile(1, 2)  # as in `train 2>&1 | tee log`
        except OSError:  # one of them is closed
            same = False
        self._lines = {1: out, 2: out if same else Line()}

    def __getitem__(self, target: int) -> Line:
        return self._lines[target]


class Untagged:
    """The launcher's own words on such a stream: passed on as they are, but never into the line of a rank."""

    held = b""

    def __init__(self, line: Line) -> None:
        self._line = line

    def __call__(self, chunk: bytes) -> bytes:
        """The chunk, on a line of its own."""
        return self._line.take(self, chunk[-1:]) + chunk if chunk else b""

    def flush(self) -> bytes:
        """Nothing is held back."""
        return b""

    def rest(self) -> bytes:
        """Nothing is held back."""
        return b""


class Tagger:
    """Call it with each piece of a rank's stream; it gives what is to be written now, and keeps the rest in `held`."""

    def __init__(self, tag: str, line: Line | None = None) -> None:
        self._tag = tag.encode()
        self._line = line or Line()
        pairs = ((b"\n", b"\n"), (b"\r", b"\n"), (b"\n", b"\r"), (b"\r", b"\r"))
        empty = [(first + self._tag + second, first + second) for first, second in pairs]
        bar = b"\n" + self._tag + b"\r" + self._tag  # begins with a return
        # Each twice: neighbours share a line's end.
        self._mend = [pair for pair in (*empty[:2], (bar, b"\n" + self._tag), *empty[2:]) for _ in range(2)]
        self._last = b""  # the last byte that was passed on
        self.held = b""

    def __call__(self, chunk: bytes) -> bytes:
        """The whole lines that there are now. A carriage return ends one too: progress bars must move."""
        data = self.held + chunk if self.held else chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - cut > _LONGEST_LINE:
            cut = _whole_characters(data)
        elif data[max(0, cut - 2) : cut] == b"\n\r" or (
            cut == 1 and data[:1] == b"\r" and self._line.owner is not self
        ):
            cut -= 1  # the return that begins a progress bar is no line yet
        self.held = data[cut:]
        return self._tagged(data[:cut])

    def flush(self) -> bytes:
        """What is held back of an unfinished line, as the rank is silent. It goes on there, if no other rank speaks."""
        data, cut = self.held, _whole_characters(self.held)
        self.held = data[cut:]
        return self._tagged(data[:cut])

    def rest(self) -> bytes:
        """What the stream ended with, as a line of its own."""
        data, self.held = self.held, b""
        text = self._tagged(data)
        if self._line.owner is self:
            self._line.owner = None
            text += b"\n"
        return text

    def _tagged(self, text: bytes) -> bytes:
        if not text:
            return b""
        fresh = self._line.owner is not self
        if fresh and text[:1] == b"\r" and text[1:2] not in (b"", b"\r", b"\n"):
            text = text[1:]  # a progress bar returns to where its line begins, and there the tag stands
        begins = fresh or self._last == b"\r"
        before = self._line.take(self, text[-1:])
        self._last = text[-1:]
        if begins and text[:1] not in b"\r\n":
            before += self._tag
        return before + self._inner(text)

    def _inner(self, text: bytes) -> bytes:
        """With the tag after each line's end but the last; not before empty lines. Ten times as fast as a pattern."""
        last = text[-1:] if text[-1:] in (b"\n", b"\r") else b""
        text = text[: len(text) - len(last)]
        for end in (b"\n", b"\r"):
            text = text.replace(end, end + self._tag)
        text += last
        for wrong, right in self._mend:
            if wrong in text:
                text = text.replace(wrong, right)
        return text


def _whole_characters(text: bytes) -> int:
    """How much of an unfinished line can be passed on without cutting a UTF-8 character in two."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if back < length else len(text)
        if byte < 0x80:
            break
    return len(text)
