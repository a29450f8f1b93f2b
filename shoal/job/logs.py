"""What the hosts print: to one file a host, byte for byte, and live to the user with the host's name before each line.

Lines are data: no markup, no decoding surprises, no wrapping. On a terminal only the host's name is coloured.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from shoal.console import discard

_LONGEST_LINE = 1 << 20  # bytes
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


class Printer:
    """Prints whole lines of several hosts, one at a time, on one stream."""

    def __init__(self, console: Console, hosts: Sequence[str], above: Console | None = None) -> None:
        """Print on `console`; on a terminal whose last lines another console redraws, `above` those."""
        self._stream = console.file
        self._above = above if console.is_terminal else None
        self._lock = threading.Lock()
        coloured = console.is_terminal and not console.no_color
        width = max(map(len, hosts))
        self._prefixes = {
            host: Style(color=_COLOURS[i % len(_COLOURS)]).render(
                host.ljust(width), color_system=ColorSystem.STANDARD if coloured else None
            )
            for i, host in enumerate(hosts)
        }

    def line(self, host: str, line: bytes) -> None:
        """Print one line of a host."""
        # A progress bar redraws its line after each \r: what it drew last is what a reader would see.
        text = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        text = text.encode(encoding, "replace").decode(encoding)
        with self._lock:
            try:
                if self._above is not None:
                    self._above.print(Text.from_ansi(f"{self._prefixes[host]} | {text}"))
                    return
                self._stream.write(f"{self._prefixes[host]} | {text}\n")
                self._stream.flush()
            except OSError:
                discard(self._stream)  # nobody reads any more (`shoal run ... | head`); the files have everything


def follow(
    host: str,
    chunks: Iterable[bytes],
    file: Path,
    printer: Printer,
    heed: Callable[[str, bytes], None] = lambda _host, _line: None,
) -> None:
    """Add a host's output to `file` and pass it, line by line, to `heed` and the printer, until it ends."""
    with file.open("ab", buffering=0) as log:
        lines, full = _Lines(), False
        for chunk in chunks:
            try:
                log.write(chunk if not full else b"")
            except OSError as error:
                # Go on reading: a host whose output nobody takes stands still.
                full = True
                printer.line(host, f"shoal: {file} is not complete: {error.strerror}".encode())
            for line in lines.feed(chunk):
                heed(host, line)
                printer.line(host, line)
        if rest := lines.rest():
            heed(host, rest)
            printer.line(host, rest)


class _Lines:
    """Cuts a stream into lines; one without end is cut where a terminal's reader has long given up."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that are complete now."""
        *complete, rest = chunk.split(b"\n")
        if complete:
            complete[0] = self.rest() + complete[0]
        self._pieces.append(rest)
        self._size += len(rest)
        return complete if self._size < _LONGEST_LINE else [*complete, self.rest()]

    def rest(self) -> bytes:
        """Return what has no end yet, and forget it."""
        rest, self._pieces, self._size = b"".join(self._pieces), [], 0
        return rest
