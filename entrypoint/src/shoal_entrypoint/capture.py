"""What a failed command said: a bounded tail of its output and the tracebacks in it, found while the bytes pass by.

Nothing here changes the output. The cost for output without a traceback is one search for a fixed string per chunk.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from typing import Iterator, NamedTuple

__all__ = ["Capture", "RankCapture", "failing_rank", "torchrun_cause"]

_MARKER = b"Traceback (most recent call last)"
_TAIL_BYTES = 64 * 1024
_BLOCK_BYTES = 8 * 1024
_BLOCKS = 64
_LINES_AFTER_EXCEPTION = 10

# mpirun --tag-output: [job,rank]<stream>:text
_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:")
# torch.distributed marks the lines of an uncaught exception: [rank3]: Traceback ...
_TORCH_TAG = re.compile(rb"^\[rank(\d+)\]: ?")
_CHAIN = (b"During handling of the above", b"The above exception was")

# In the order of trust: what mpirun itself says about the first process that ended badly.
_CULPRITS = (
    re.compile(rb"MPI_ABORT was invoked on rank (\d+)"),
    re.compile(rb"Process name: \[\[\d+,\d+\],(\d+)\]"),
    re.compile(rb"mpirun noticed that process rank (\d+) with PID"),
)
_ROOT_CAUSE = re.compile(rb"Root Cause.*?\n\s*rank\s*: (\d+).*?\n\s*exitcode\s*: (-?\d+)", re.DOTALL)


class _Block:
    """One traceback, while it is read."""

    def __init__(self, first: bytes) -> None:
        self.lines: list[bytes] = [first]
        self.size = len(first)
        self.after = 0  # lines since the exception's own line
        self.open = True

    def add(self, line: bytes) -> None:
        blank = not line.strip()
        if self.after and not blank and not line.startswith(_CHAIN) and self.after > _LINES_AFTER_EXCEPTION:
            self.open = False
            return
        if self.after or (not blank and line[:1] not in b" \t"):
            self.after += 1
        if self.size + len(line) > _BLOCK_BYTES:
            # The end names the exception: give up lines of the middle.
            while len(self.lines) > 4 and self.size + len(line) > _BLOCK_BYTES:
                self.size -= len(self.lines.pop(3))
        self.lines.append(line[:_BLOCK_BYTES])
        self.size += len(line[:_BLOCK_BYTES])

    def chain(self, line: bytes) -> None:
        """A second traceback that belongs to the first: `raise ... from ...`."""
        self.after = 0
        self.lines.append(line)
        self.size += len(line)

    @property
    def expects_chain(self) -> bool:
        return any(line.startswith(_CHAIN) for line in self.lines[-3:])

    def text(self) -> str:
        return b"\n".join(self.lines).decode("utf-8", "backslashreplace").strip()


class Capture:
    """The memory of one output stream."""

    def __init__(self) -> None:
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._carry = b""  # an unfinished last line, so that markers and tags are never cut in two
        self._blocks: OrderedDict[int | None, _Block] = OrderedDict()
        self._earlier: dict[int | None, _Block] = {}

    def feed(self, chunk: bytes) -> None:
        """Take note of a piece of output."""
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) >= _TAIL_BYTES:
            self._tail_size -= len(self._tail.popleft())
        data = self._carry + chunk
        cut = data.rfind(b"\n") + 1
        self._carry = data[cut:][-_BLOCK_BYTES:]
        if _MARKER in data[:cut] or any(block.open for block in self._blocks.values()):
            for line in data[:cut].splitlines():
                self._line(line)

    def finish(self) -> None:
        """Take the last line, if it had no end."""
        line, self._carry = self._carry, b""
        if line and (_MARKER in line or self._blocks):
            self._line(line)

    def tail(self) -> bytes:
        """The last part of the output, at most 64 KiB and a chunk."""
        return b"".join(self._tail)

    def traceback(self, rank: int | None) -> str | None:
        """The last traceback of a rank."""
        block = self._blocks.get(rank)
        return block.text() if block else None

    def earlier_traceback(self, rank: int | None) -> str | None:
        """The last but one: launchers written in Python end with a traceback of their own."""
        block = self._earlier.get(rank)
        return block.text() if block else None

    def first_rank(self) -> int | None:
        """The rank whose traceback came first."""
        return next(iter(self._blocks), None)

    def last_words(self) -> Iterator[tuple[int | None, str]]:
        """The tracebacks that ranks ended with: little or nothing followed. In the order in which they came."""
        return ((rank, block.text()) for rank, block in self._blocks.items() if block.open)

    def rank_lines(self, rank: int | None, count: int) -> list[str]:
        """The last lines of a rank, without tags."""
        lines = []
        for line in self.tail().splitlines():
            texts = [text for origin, text in _untag(line) if origin == rank]
            lines += [text.decode("utf-8", "backslashreplace").rstrip() for text in texts]
        return lines[-count:]

    def _line(self, line: bytes) -> None:
        for rank, text in _untag(line):
            self._rank_line(rank, text)

    def _rank_line(self, rank: int | None, text: bytes) -> None:
        block = self._blocks.get(rank)
        if text.lstrip().startswith(_MARKER):
            if block and block.open and block.expects_chain:
                block.chain(text)
            elif len(self._blocks) < _BLOCKS or rank in self._blocks:
                earlier = self._blocks.pop(rank, None)
                if earlier is not None:
                    self._earlier[rank] = earlier
                self._blocks[rank] = _Block(text)
        elif block and block.open:
            block.add(text)


class RankCapture(NamedTuple):
    """The memory of one rank's streams, where these are its own."""

    rank: int
    stdout: Capture
    stderr: Capture

    def traceback(self) -> str | None:
        """Its last traceback, with torch's marks or without."""
        told = (stream.traceback(rank) for stream in (self.stderr, self.stdout) for rank in (self.rank, None))
        return next((text for text in told if text is not None), None)

    def last_words(self) -> str | None:
        """The traceback that it ended with."""
        return next((text for stream in (self.stderr, self.stdout) for _, text in stream.last_words()), None)

    def lines(self, count: int) -> list[str]:
        """The last lines of its stderr."""
        return self.stderr.rank_lines(None, count) or self.stderr.rank_lines(self.rank, count)


def _untag(line: bytes) -> list[tuple[int | None, bytes]]:
    """A line of output -> (rank, text as the rank wrote it), mostly one.

    mpirun tags what it reads at once, not lines: pieces of several ranks can share a line.
    """
    tags = list(_TAG.finditer(line))
    if not tags or tags[0].start() != 0:
        return [_untag_torch(None, line)]
    pieces: dict[int, bytes] = {}
    for tag, following in zip(tags, [*tags[1:], None]):
        rank = int(tag.group(1))
        pieces[rank] = pieces.get(rank, b"") + line[tag.end() : following.start() if following else len(line)]
    return [_untag_torch(rank, text) for rank, text in pieces.items() if text or len(pieces) == 1]


def _untag_torch(rank: int | None, text: bytes) -> tuple[int | None, bytes]:
    tag = _TORCH_TAG.match(text)
    if tag is None:
        return rank, text
    return int(tag.group(1)) if rank is None else rank, text[tag.end() :]


def torchrun_cause(stderr: bytes) -> tuple[int, int] | None:
    """The (rank, return code) that torchrun calls the root cause."""
    found = _ROOT_CAUSE.search(stderr)
    return (int(found.group(1)), int(found.group(2))) if found else None


def failing_rank(stderr: bytes) -> int | None:
    """The rank that mpirun blames for the end of the job."""
    for pattern in _CULPRITS:
        found = pattern.search(stderr)
        if found:
            return int(found.group(1))
    return None
