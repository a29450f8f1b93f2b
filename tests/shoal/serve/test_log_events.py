"""Lines on their way from log files into events."""

from pathlib import Path

import pytest

from shoal.serve.log_events import LogEvents
from shoal.serve.store import Job, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "jobs.sqlite")


def printed(store: Store) -> list[str]:
    return [event["message"] for _region, _stream, events in store.log_streams() for event in events]


def test_lines_become_events_when_they_are_whole_and_once(store: Store, tmp_path: Path) -> None:
    job = Job("lines", {}, "eu-west-1")
    store.add(job)
    file = tmp_path / "algo-1.log"
    file.write_bytes(b"one\n\ntw")
    logs = LogEvents(store, job, tmp_path)
    logs.collect()
    assert printed(store) == ["one", ""]
    with file.open("ab") as more:
        more.write(b"o\r\n\xff")
    logs.collect()
    assert printed(store) == ["one", "", "two"]
    # Another server goes on where this one was.
    LogEvents(store, job, tmp_path).collect(ended=True)
    LogEvents(store, job, tmp_path).collect(ended=True)
    assert printed(store) == ["one", "", "two", "\ufffd"]


def test_a_line_longer_than_an_event_is_cut(store: Store, tmp_path: Path) -> None:
    job = Job("long", {}, "eu-west-1")
    store.add(job)
    line = "x" * (5 << 20)
    (tmp_path / "algo-1.log").write_text(f"{line}\nend\n")
    LogEvents(store, job, tmp_path).collect()
    *pieces, end = printed(store)
    assert ("".join(pieces), end) == (line, "end")
    assert max(map(len, pieces)) <= 256 * 1024
