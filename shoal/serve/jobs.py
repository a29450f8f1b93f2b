"""The jobs of one endpoint: which run now, which wait. At most `at_once` run; the others run in the order they came."""

import sqlite3
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.job.objects import Objects
from shoal.serve.life import Life
from shoal.serve.store import Job, Query, Store
from shoal.serve.view import FINAL

MOST_TAGS = 50  # the service's
_BETWEEN_TRIES_S = 5.0


class CannotStopError(Exception):
    """The job has ended; the message is its status."""


class TooManyTagsError(Exception):
    """A job cannot have so many tags; the message says how many."""


class Jobs:
    """Takes jobs, runs them, knows them."""

    def __init__(
        self, store: Store, folder: Path, at_once: int, objects: Objects, environment: Mapping[str, str]
    ) -> None:
        self._store, self._folder, self._at_once, self.objects = store, folder, at_once, objects
        self._environment = environment
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        self._running: set[str] = set()

    def resume(self) -> list[str]:
        """Go on with the jobs an earlier server left; return a line about each.

        Those that had begun go on at once, whatever the bound: they run, or ran, already.
        """
        said = []
        for job in self._store.unfinished():
            began = job.phase in ("running", "uploading")
            said.append(f"{job.name}: {'goes on' if began else 'waits'} ({job.phase})")
            if began:
                self._start(job.name)
            else:
                self._waiting.append(job.name)
        self._fill()
        return said

    def create(self, job: Job) -> None:
        """Take a job.

        Raises:
            NameTakenError: there is one of that name.
        """
        self._store.add(job)
        self._waiting.append(job.name)
        self._fill()

    def get(self, name: str) -> Job | None:
        """Return a job, or None."""
        return self._store.get(name)

    def find(self, query: Query) -> list[Job]:
        """Return a page of jobs."""
        return self._store.find(query)

    def tag(self, name: str, change: Callable[[dict[str, str]], dict[str, str]]) -> dict[str, str]:
        """Change the tags of a job, which are kept in its request; return them as they are then.

        Raises:
            TooManyTagsError: there would be more than the service allows.
        """
        tags: dict[str, str] = {}

        def changed(job: Job) -> dict[str, Any]:
            before = {tag["Key"]: tag["Value"] for tag in job.request.get("Tags", [])}
            tags.update(change(before))
            if len(tags) > MOST_TAGS:
                raise TooManyTagsError(f"{name} would have {len(tags)} tags, and {MOST_TAGS} are allowed")
            listed = [{"Key": key, "Value": value} for key, value in tags.items()]
            return {} if tags == before else {"request": {**job.request, "Tags": listed}}

        self._store.change(name, changed)
        return tags

    def stop(self, name: str) -> None:
        """Stop a job, or wait for one that is stopping.

        Raises:
            CannotStopError: it has ended.
        """

        def wish(job: Job) -> dict[str, Any]:
            if job.status in FINAL:
                raise CannotStopError(job.status)
            if job.stop:
                return {}
            return {"stop": "wanted", "status": "Stopping", "stages": job.entered("Stopping", "Stopping the job")}

        self._store.change(name, wish)
        with self._lock:
            if name not in self._waiting:
                return
            self._waiting.remove(name)
        self._life(name).stopped()

    def _fill(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or len(self._running) >= self._at_once:
                    return
                name = self._waiting.popleft()
                self._running.add(name)
            self._thread(name)

    def _start(self, name: str) -> None:
        with self._lock:
            self._running.add(name)
        self._thread(name)

    def _thread(self, name: str) -> None:
        # A daemon: the server may end while jobs run, and finds them again when it is back.
        threading.Thread(target=self._live, args=(name,), name=name, daemon=True).start()

    def _live(self, name: str) -> None:
        try:
            self._life(name).live()
        except Exception as error:
            traceback.print_exc()  # a bug, or a full disk
            self._note_broken(name, error)
        finally:
            with self._lock:
                self._running.discard(name)
            self._fill()

    def _note_broken(self, name: str, error: Exception) -> None:
        """Say that a job has failed, as soon as the state can be written."""
        while True:
            try:
                self._life(name).broken(error)
            except (OSError, sqlite3.Error):
                time.sleep(_BETWEEN_TRIES_S)
            else:
                return

    def _life(self, name: str) -> Life:
        return Life(self._store, name, self._folder / name, self.objects, self._environment)
