"""The output of `mpirun --tag-output`, `[1,3]<stdout>:text`, as ranks wrote it, with `[algo-2:3] ` before each line.

mpirun tags what it reads at once, up to 4 KiB, not lines: pieces of several ranks share a line, and long lines have
tags in their midst. Here every rank's text is put together again. mpirun's own lines, without tags, are left alone.
"""

from __future__ import annotations

import re
from typing import Callable

from shoal_entrypoint.tagging import Line, Tagger, Untagged

__all__ = ["RankTags", "Untag"]

_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:")
# The beginning of a tag whose end has not come yet.
_BEGUN = re.compile(rb"\[(?:\d+(?:,(?:\d+(?:\](?:<[a-z]*>?)?)?)?)?)?\Z")
_LONGEST_TAG = 48


class _Pieces:
    """Cuts the stream at its tags."""

    def __init__(self) -> None:
        self._begun = b""  # of a tag
        self._rank: bytes | None = None  # whose text goes on; None for mpirun's own

    def cut(self, chunk: bytes) -> list[tuple[bytes | None, bytes]]:
        """(rank, text) in order; mpirun's own text has no rank."""
        data = self._begun + chunk if self._begun else chunk
        begun = _BEGUN.search(data, max(0, len(data) - _LONGEST_TAG))
        self._begun = data[begun.start() :] if begun else b""
        return self._split(data[: begun.start()] if begun else data)

    def rest(self) -> list[tuple[bytes | None, bytes]]:
        """What looked like the beginning of a tag, and was none."""
        data, self._begun = self._begun, b""
        return self._split(data)

    def _split(self, data: bytes) -> list[tuple[bytes | None, bytes]]:
        parts = _TAG.split(data)
        parts.insert(0, self._rank)  # before the first tag there is what goes on
        found: list[tuple[bytes | None, bytes]] = []
        rank: bytes | None = None
        run: list[bytes] = []  # texts of one rank, one after the other: in few pieces everything is faster
        for origin, text in zip(parts[0::2], parts[1::2]):
            if origin != rank:
                found.append((rank, b"".join(run)))
                rank, run = origin, []
            # A rank's text ends with its line: what follows has a tag of its own, or is mpirun's.
            end = text.find(b"\n") + 1
            if 0 < end < len(text) and origin is not None:
                found += [(origin, b"".join([*run, text[:end]])), (None, text[end:])]
                rank, run = None, []
            else:
                run.append(text)
        found.append((rank, b"".join(run)))
        self._rank = None if data.endswith(b"\n") else rank
        return [piece for piece in found if piece[1]]


class RankTags:
    """A filter (see relay.py) for a job of several ranks."""

    def __init__(self, tag: Callable[[int], str], line: Line) -> None:
        self._tag = tag
        self._line = line
        self._pieces = _Pieces()
        self._own = Untagged(line)
        self._ranks: dict[bytes, Tagger] = {}

    @property
    def held(self) -> bytes:
        """What is kept back, of all ranks."""
        return self._pieces._begun or next((tagger.held for tagger in self._ranks.values() if tagger.held), b"")

    def __call__(self, chunk: bytes) -> bytes:
        """The lines that are whole now."""
        return self._put(self._pieces.cut(chunk))

    def flush(self) -> bytes:
        """What ranks have begun, each on a line of its own."""
        return self._put(self._pieces.rest()) + b"".join(tagger.flush() for tagger in self._ranks.values())

    def rest(self) -> bytes:
        """What ranks have not ended."""
        return self._put(self._pieces.rest()) + b"".join(tagger.rest() for tagger in self._ranks.values())

    def _put(self, pieces: list[tuple[bytes | None, bytes]]) -> bytes:
        out: list[bytes] = []
        for rank, text in pieces:
            if rank is None:
                out.append(self._own(text))
            else:
                out.append((self._ranks.get(rank) or self._new(rank))(text))
        return b"".join(out)

    def _new(self, rank: bytes) -> Tagger:
        self._ranks[rank] = Tagger(self._tag(int(rank)), self._line)
        return self._ranks[rank]


class Untag:
    """A filter for the only rank of a job: its text as it wrote it."""

    def __init__(self) -> None:
        self._pieces = _Pieces()

    @property
    def held(self) -> bytes:
        """What may be the beginning of a tag."""
        return self._pieces._begun

    def __call__(self, chunk: bytes) -> bytes:
        """The chunk without tags."""
        return b"".join(text for _, text in self._pieces.cut(chunk))

    def flush(self) -> bytes:
        """What was no tag."""
        return b"".join(text for _, text in self._pieces.rest())

    def rest(self) -> bytes:
        """The same."""
        return self.flush()
