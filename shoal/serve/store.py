"""The jobs the endpoint knows and what they printed, in one SQLite file: what survives a restart of the server.

Every call opens its own connection, so that any thread may make it. Times are ISO 8601 in UTC, so that text sorts.
"""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

# queued: waits for its turn; running: `shoal run` has it, or had; uploading: its results go.
Phase = Literal["queued", "running", "uploading", "ended"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    name TEXT PRIMARY KEY, request TEXT NOT NULL, region TEXT NOT NULL, phase TEXT NOT NULL, status TEXT NOT NULL,
    secondary TEXT NOT NULL, stages TEXT NOT NULL, run TEXT NOT NULL, reason TEXT NOT NULL, model TEXT NOT NULL,
    stop TEXT NOT NULL, created TEXT NOT NULL, modified TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS log_stream (
    job TEXT NOT NULL, host TEXT NOT NULL, name TEXT NOT NULL, offset INTEGER NOT NULL, PRIMARY KEY (job, host)
);
CREATE TABLE IF NOT EXISTS log_event (stream TEXT NOT NULL, timestamp INTEGER NOT NULL, message TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS log_event_of_stream ON log_event (stream);
"""
_JSON_FIELDS = ("request", "stages", "run")
_VERSION = 1


def now() -> str:
    """Return the time as the store writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Job:
    """One job as the endpoint knows it."""

    name: str
    request: dict[str, Any]
    region: str
    phase: Phase = "queued"
    status: str = "InProgress"  # TrainingJobStatus
    secondary: str = ""  # SecondaryStatus of a job that has ended
    stages: list[dict[str, str]] = field(default_factory=list)  # SecondaryStatusTransitions without their ends
    run: dict[str, Any] = field(default_factory=dict)  # the description that `shoal run` wrote last
    reason: str = ""  # FailureReason
    model: str = ""  # where the model was uploaded to
    stop: Literal["", "wanted", "sent"] = ""
    created: str = field(default_factory=now)
    modified: str = field(default_factory=now)

    def entered(self, stage: str, message: str) -> list[dict[str, str]]:
        """Return the stages with one more."""
        return [*self.stages, {"Status": stage, "StartTime": now(), "StatusMessage": message}]


@dataclass(frozen=True)
class LogStream:
    """What one host has printed so far is in the stream up to `offset` bytes of its log file."""

    job: str
    host: str
    name: str
    offset: int


@dataclass(frozen=True)
class Query:
    """What a list of jobs is to hold. `after` is the place where the last page ended: (sort value, name)."""

    sort_by: Literal["name", "created", "status"]
    descending: bool
    conditions: list[tuple[str, str]]  # such as ("created > ?", "2026-..."), all of which must hold
    limit: int
    after: tuple[str, str] | None


class NameTakenError(Exception):
    """There is a job of that name."""


class Store:
    """The jobs in one SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with contextlib.closing(self._connect()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, _VERSION):
                raise sqlite3.DatabaseError(f"its version is {found}, not {_VERSION}: another shoal made it")
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version={_VERSION}")

    def add(self, job: Job) -> None:
        """Add a job.

        Raises:
            NameTakenError: there is one of that name.
        """
        row = _row(job)
        try:
            with self._transaction() as db:
                marks = ", ".join(f":{name}" for name in row)
                db.execute(f"INSERT INTO job ({', '.join(row)}) VALUES ({marks})", row)
        except sqlite3.IntegrityError as error:
            raise NameTakenError(job.name) from error

    def get(self, name: str) -> Job | None:
        """Return a job, or None."""
        with self._transaction() as db:
            row = db.execute("SELECT * FROM job WHERE name = ?", (name,)).fetchone()
        return _job(row) if row else None

    def change(self, name: str, change: Callable[[Job], dict[str, Any]]) -> Job:
        """Change a job by what `change` makes of it, while nobody else writes it; return what it is now."""
        with self._transaction() as db:
            job = _job(db.execute("SELECT * FROM job WHERE name = ?", (name,)).fetchone())
            changes = change(job)
            if not changes:
                return job
            job = replace(job, **changes, modified=now())
            row = _row(job)
            db.execute(f"UPDATE job SET {', '.join(f'{field} = :{field}' for field in row)} WHERE name = :name", row)
        return job

    def unfinished(self) -> list[Job]:
        """Return the jobs that have not ended, the oldest first."""
        with self._transaction() as db:
            rows = db.execute("SELECT * FROM job WHERE phase != 'ended' ORDER BY created, rowid").fetchall()
        return [_job(row) for row in rows]

    def find(self, query: Query) -> list[Job]:
        """Return at most `limit` jobs."""
        conditions, values = [text for text, _value in query.conditions], [value for _text, value in query.conditions]
        if query.after is not None:
            conditions.append(f"({query.sort_by}, name) {'<' if query.descending else '>'} (?, ?)")
            values += query.after
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        order = "DESC" if query.descending else "ASC"
        with self._transaction() as db:
            rows = db.execute(
                f"SELECT * FROM job {where} ORDER BY {query.sort_by} {order}, name {order} LIMIT ?",
                (*values, query.limit),
            ).fetchall()
        return [_job(row) for row in rows]

    def log_stream(self, job: str, host: str, name: str) -> LogStream:
        """Return the stream of a host; begin it under `name` if it is new."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO log_stream VALUES (?, ?, ?, 0)", (job, host, name))
            row = db.execute("SELECT * FROM log_stream WHERE job = ? AND host = ?", (job, host)).fetchone()
        return LogStream(**row)

    def add_log_events(self, stream: LogStream, offset: int, events: list[dict[str, Any]]) -> LogStream:
        """Add events, and note up to where the log file has been read."""
        with self._transaction() as db:
            rows = [(stream.name, event["timestamp"], event["message"]) for event in events]
            db.executemany("INSERT INTO log_event VALUES (?, ?, ?)", rows)
            db.execute("UPDATE log_stream SET offset = ? WHERE name = ?", (offset, stream.name))
        return replace(stream, offset=offset)

    def log_streams(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """Yield (region, stream, events) of every stream."""
        with self._transaction() as db:
            streams = db.execute(
                "SELECT log_stream.name, region FROM log_stream JOIN job ON job.name = log_stream.job"
            ).fetchall()
            for name, region in streams:
                events = db.execute(
                    "SELECT timestamp, message FROM log_event WHERE stream = ? ORDER BY rowid", (name,)
                ).fetchall()
                yield region, name, [dict(event) for event in events]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(self._connect()) as db:
            # Writers one after another from the first statement on: what is read is still so when it is written.
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        db.row_factory = sqlite3.Row
        return db


def _row(job: Job) -> dict[str, str]:
    return {key: json.dumps(value) if key in _JSON_FIELDS else value for key, value in vars(job).items()}


def _job(row: sqlite3.Row) -> Job:
    return Job(**{key: json.loads(row[key]) if key in _JSON_FIELDS else row[key] for key in row.keys()})  # noqa: SIM118
