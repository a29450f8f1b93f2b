"""What the hosts print, from their log files into CloudWatch's log streams as moto keeps them, and into the store.

A stream is named as the service names it: `<job>/<host>-<seconds since 1970>`. An event's time is when its line was
read: a fraction of a second after it was printed, or when the server came back.
"""

import time
from pathlib import Path
from typing import Any

from moto.logs.models import logs_backends

from shoal.serve.store import Job, LogStream, Store

GROUP = "/aws/sagemaker/TrainingJobs"
ACCOUNT = "123456789012"  # moto's own
_LONGEST_EVENT = 256 * 1024  # bytes; the service's
_READ = 1 << 22


class LogEvents:
    """Follows the log files of one job."""

    def __init__(self, store: Store, job: Job, folder: Path) -> None:
        self._store, self._job, self._folder = store, job, folder
        self._streams: dict[str, LogStream] = {}

    def collect(self, *, ended: bool = False) -> None:
        """Take every whole line that is there; also a last line without an end if the job has ended."""
        for file in sorted(self._folder.glob("*.log")):
            stream = self._streams.get(file.stem) or self._begin(file.stem)
            self._streams[file.stem] = self._take(file, stream, ended)

    def _begin(self, host: str) -> LogStream:
        stream = self._store.log_stream(self._job.name, host, f"{self._job.name}/{host}-{int(time.time())}")
        publish(self._job.region, stream.name, [])
        return stream

    def _take(self, file: Path, stream: LogStream, ended: bool) -> LogStream:
        with file.open("rb") as log:
            log.seek(stream.offset)
            while data := log.read(_READ):
                whole = data if ended and len(data) < _READ else data[: data.rfind(b"\n") + 1]
                if not whole and len(data) < _LONGEST_EVENT:
                    break
                whole = whole or data  # a line longer than an event can be: it is cut
                events = _events(whole)
                stream = self._store.add_log_events(stream, stream.offset + len(whole), events)
                publish(self._job.region, stream.name, events)
                log.seek(stream.offset)
        return stream


def publish(region: str, stream: str, events: list[dict[str, Any]]) -> None:
    """Add events to a stream as clients see it; the group and the stream are made if they are not there."""
    backend = logs_backends[ACCOUNT][region]
    backend.ensure_log_group(GROUP)
    backend.ensure_log_stream(GROUP, stream)
    if events:
        # Not through the backend's own method: it drops events older than two weeks.
        backend.groups[GROUP].put_log_events(stream, events)


def _events(data: bytes) -> list[dict[str, Any]]:
    now = int(time.time() * 1000)
    lines = data.removesuffix(b"\n").split(b"\n")
    pieces = [line[i : i + _LONGEST_EVENT] for line in lines for i in range(0, max(len(line), 1), _LONGEST_EVENT)]
    return [{"timestamp": now, "message": piece.decode(errors="replace").rstrip("\r")} for piece in pieces]
