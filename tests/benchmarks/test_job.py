"""How jobs end: in good order where they can, and without a trace in any case."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import job as job_module
from harness.job import Command, Job, JobError, quit_all
from harness.segments import SHARED_MEMORY

WORKER = Path(__file__).parent / "workers" / "small_rank.py"
LIMIT = 30


def started(folder: Path, *words: str) -> Job:
    job = Job(1, folder)
    job.start([command(*words)], LIMIT)
    return job


def command(*words: str) -> Command:
    return Command([sys.executable, str(WORKER), "0", *words], os.environ)


def processes_of(folder: Path) -> list[str]:
    """Command lines of what has `folder` as its channel."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"BENCH_CHANNEL={folder}\0".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.fixture
def name() -> Iterator[str]:
    """Of a file of shared memory."""
    name = f"test_job_{os.getpid()}"
    yield name
    (SHARED_MEMORY / name).unlink(missing_ok=True)


def test_jobs_that_worked_leave_in_good_order(tmp_path: Path) -> None:
    jobs = [started(tmp_path / "a"), started(tmp_path / "b")]
    quit_all(jobs)
    assert [(job.folder / "left.0").exists() for job in jobs] == [True, True]


def test_who_does_not_go_is_made_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "_QUIT_SECONDS", 0.2)
    quit_all([started(tmp_path / "a", "stuck")])
    assert processes_of(tmp_path / "a") == []
    assert not (tmp_path / "a" / "left.0").exists()


@pytest.mark.parametrize("by_force", [True, False])
def test_a_launchers_daemons_go_with_the_job(by_force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "_QUIT_SECONDS", 0.5)
    # Whose folder's name begins with that of the first is another job.
    first, other = started(tmp_path / "openmpi", "daemon"), started(tmp_path / "openmpi-torch", "daemon")
    try:
        assert len(processes_of(first.folder)) == 2
        if by_force:
            first.kill()
        else:
            quit_all([first])
        assert processes_of(first.folder) == []
        assert len(processes_of(other.folder)) == 2
    finally:
        other.kill()


@pytest.mark.parametrize("by_force", [True, False])
def test_shared_memory_goes_with_the_job(by_force: bool, name: str, tmp_path: Path) -> None:
    job = started(tmp_path / "a", "shares", name)
    assert (SHARED_MEMORY / name).exists()
    if by_force:
        job.kill()
    else:
        quit_all([job])
    assert not (SHARED_MEMORY / name).exists()


def test_shared_memory_of_others_stays(name: str, tmp_path: Path) -> None:
    before = SHARED_MEMORY / name
    before.write_bytes(bytes(4096))
    with before.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        started(tmp_path / "a", "shares", name).kill()
    assert before.exists(), "the job had it mapped, but it was there before the job"
    before.unlink()
    job = started(tmp_path / "b", "shares", name)
    before.unlink()
    before.write_text("of another program, under the same name")
    job.kill()
    assert before.exists()


def test_a_job_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    job = Job(2, tmp_path / "a")  # The second rank never comes.
    with pytest.raises(JobError, match=r"ranks \[1\] did not answer within 1 s"):
        job.start([command("daemon")], 1)
    assert processes_of(tmp_path / "a") == []
