"""Pipe mode: a FIFO for each epoch of a channel, `/opt/ml/input/data/<channel>_<epoch>`, fed while a script reads it.

The FIFOs of a host lie in one folder of this machine that the host sees as `/opt/ml/input/data`. That of the next epoch
is there before the present one ends; one that has been read is removed. A script may close an epoch early.
"""

import contextlib
import errno
import gzip
import itertools
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from shoal.errors import ShoalError
from shoal.job.objects import Objects
from shoal.job.recordio import record
from shoal.job.survey import Piece, Survey

_POLL_S = 0.02  # how soon a reader is noticed: a FIFO cannot be waited for and given up at the same time
_CHUNK = 1 << 20


class Pipes:
    """The pipes of one attempt of a job. `report` gets what goes wrong while they are fed."""

    def __init__(
        self, surveys: Iterable[Survey], objects: Objects, folder: Path, report: Callable[[ShoalError], None]
    ) -> None:
        self._surveys = [each for each in surveys if each.channel.mode == "Pipe"]
        self._objects, self._folder, self._report = objects, folder, report
        self._stop = threading.Event()

    def folders(self) -> dict[str, Path]:
        """Make the folder of each host that has pipes, with the FIFOs of the first epoch."""
        folders = {host: self._folder / host for survey in self._surveys for host in survey.channel.hosts}
        for survey in self._surveys:
            for host in survey.channel.hosts:
                folders[host].mkdir(parents=True, exist_ok=True)
                _make(folders[host] / f"{survey.channel.name}_0")
        return folders

    def feed(self) -> None:
        """Begin to feed; returns at once."""
        for survey in self._surveys:
            for host in survey.channel.hosts:
                threading.Thread(target=self._feed, args=(survey, host), daemon=True).start()

    def stop(self) -> None:
        """Open no pipe any more. One that is being read ends with its reader."""
        self._stop.set()

    def _feed(self, survey: Survey, host: str) -> None:
        base = self._folder / host / survey.channel.name
        try:
            for epoch in itertools.count():
                _make(base.with_name(f"{base.name}_{epoch + 1}"))
                pipe = base.with_name(f"{base.name}_{epoch}")
                writer = self._opened(pipe)
                if writer is None:
                    return
                with os.fdopen(writer, "wb", buffering=0) as stream, contextlib.suppress(BrokenPipeError):
                    for chunk in _content(survey, host, epoch, self._objects):
                        _write(stream, chunk)
                pipe.unlink()
        except ShoalError as error:
            self._report(error)
        except OSError as error:
            if not self._stop.is_set():  # else the folder is being removed
                self._report(ShoalError(f"channel {survey.channel.name}: {error.strerror}", exit_code=3))

    def _opened(self, pipe: Path) -> int | None:
        """Return the pipe, open for writing, when somebody reads it; None when nobody will any more."""
        while not self._stop.is_set():
            try:
                writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                self._stop.wait(_POLL_S)
                continue
            os.set_blocking(writer, True)
            return writer
        return None


def _make(pipe: Path) -> None:
    os.mkfifo(pipe)
    pipe.chmod(0o666)  # whoever the script is


def _write(stream: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def _content(survey: Survey, host: str, epoch: int, objects: Objects) -> Iterator[bytes]:
    """Yield the bytes of an epoch: of one object after another, each a record if the channel wants records."""
    for parts in survey.of_host(host, epoch):
        for piece in parts:
            chunks = _chunks(survey, piece, objects)
            if not survey.channel.record_io:
                yield from chunks
                continue
            try:
                yield record(b"".join(chunks))
            except ValueError as error:
                where = piece.entry.uri if piece.entry else survey.channel.uri
                raise ShoalError(f"channel {survey.channel.name}: {where}: {error}") from error


def _chunks(survey: Survey, piece: Piece, objects: Objects) -> Iterator[bytes]:
    if piece.entry is None:
        yield piece.literal
        return
    with objects.open(piece.entry.uri) as stream:
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=stream)) if survey.channel.gzip else stream
        while True:
            try:
                chunk = source.read(_CHUNK)
            except (gzip.BadGzipFile, zlib.error, EOFError) as error:
                raise ShoalError(f"channel {survey.channel.name}: {piece.entry.uri} is not gzip: {error}") from error
            if not chunk:
                return
            yield chunk
