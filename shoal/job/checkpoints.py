"""Keep what a script leaves in a folder: bring checkpoints to the hosts at the start, take everything while they run.

As on the service, every host starts with all files that are kept, and the files of all hosts are kept under one prefix:
of two files of one name, the one that was taken last stays. What a script deletes stays kept.
"""

import contextlib
import tarfile
import tempfile
import threading
import time
from typing import IO, cast

from docker.errors import DockerException
from requests.exceptions import RequestException

from shoal.errors import ShoalError
from shoal.job.artifacts import Chunks, member_name
from shoal.job.docker_hosts import Hosts
from shoal.job.objects import Entry, Objects, joined
from shoal.job.plan import Kept, Plan
from shoal.job.progress import Progress

_LEAST_WAIT_S = 5.0
_SHARE = 10  # at most a tenth of the time is spent on copying
_SETTLED_S = 2.0  # an archive tells seconds only: a file this young may have changed within one

_Seen = dict[tuple[str, str], tuple[float, int]]  # (host, path) -> time of last change, bytes


class Keeper:
    """Keeps one folder of a job's hosts, through all its attempts."""

    def __init__(self, plan: Plan, config: Kept, objects: Objects, progress: Progress) -> None:
        self._hosts = [host.name for host in plan.hosts]
        self._config, self._objects, self._progress = config, objects, progress
        self._seen: _Seen = {}
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def restore(self, hosts: Hosts) -> int:
        """Put everything that is kept into every host; return how many files there are.

        Raises:
            ShoalError: it cannot be read.
        """
        self._seen = {}
        if not self._config.restored:
            return 0
        entries = self._objects.under(joined(self._config.uri, ""))
        if entries:
            with tempfile.TemporaryFile() as archive:
                self._pack(entries, archive)
                for name in self._hosts:
                    archive.seek(0)
                    hosts.put(name, self._config.local_path, archive)
        return len(entries)

    def _pack(self, entries: list[Entry], archive: IO[bytes]) -> None:
        changed = int(time.time() - 10 * _SETTLED_S)
        with tarfile.open(fileobj=archive, mode="w") as tar:
            folders = {"/".join(e.path.split("/")[:i]) for e in entries for i in range(1, e.path.count("/") + 1)}
            for folder in sorted(folders):
                info = tarfile.TarInfo(folder)
                info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o777, changed
                tar.addfile(info)
            for entry in entries:
                info = tarfile.TarInfo(entry.path)
                info.size, info.mode, info.mtime = entry.size, 0o666, changed
                with self._objects.open(entry.uri) as stream:
                    tar.addfile(info, stream)
                self._seen |= {(name, entry.path): (changed, entry.size) for name in self._hosts}

    def watch(self, hosts: Hosts) -> None:
        """Begin to take what changes while the hosts run; returns at once."""
        self._stop.clear()
        self._watcher = threading.Thread(target=self._watch, args=(hosts,), daemon=True)
        self._watcher.start()

    def finish(self, hosts: Hosts) -> None:
        """Take what the hosts, which have ended, have left.

        Raises:
            ShoalError: it cannot be kept.
        """
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        self._take(hosts)

    def stop(self) -> None:
        """Take nothing any more."""
        self._stop.set()

    def _watch(self, hosts: Hosts) -> None:
        wait, told = _LEAST_WAIT_S, False
        while not self._stop.wait(wait):
            began = time.monotonic()
            try:
                self._take(hosts)
            except (DockerException, RequestException, tarfile.TarError):
                pass  # a file that changed while it was read, or a host that is going: the next time has it
            except ShoalError as error:
                if not told:
                    told = True
                    self._progress.note(f"{self._config.what}: {error}")
            wait = max(_LEAST_WAIT_S, _SHARE * (time.monotonic() - began))

    def _take(self, hosts: Hosts) -> None:
        for name in self._hosts:
            chunks = hosts.read_folder(name, self._config.local_path)
            if chunks is None:
                continue
            with contextlib.closing(chunks), tarfile.open(fileobj=cast("IO[bytes]", Chunks(chunks)), mode="r|") as tar:
                for member in tar:
                    path = member_name(member)
                    if path is not None and self._is_new(name, path, member):
                        stream = tar.extractfile(member)
                        self._objects.write(joined(self._config.uri, path), cast("IO[bytes]", stream))
                        self._note(name, path, member)

    def _is_new(self, host: str, path: str, member: tarfile.TarInfo) -> bool:
        return self._seen.get((host, path)) != (member.mtime, member.size)

    def _note(self, host: str, path: str, member: tarfile.TarInfo) -> None:
        if member.mtime < time.time() - _SETTLED_S:
            self._seen[host, path] = (member.mtime, member.size)
