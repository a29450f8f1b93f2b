"""What is done about folders of a run that was killed, and what is left alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.job import abandoned
from shoal.job.artifacts import UNFINISHED, finished_or_absent
from shoal.job.objects import Objects
from shoal.job.spec import JobFile

DESCRIBED = {
    "TrainingJobStatus": "InProgress",
    "SecondaryStatus": "Training",
    "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": "2026-01-01T00:00:00+00:00"}],
    "RoleArn": "x",
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder and a checkpoint folder beside it, as a kill in the middle of everything leaves them."""
    folder = tmp_path / "run"
    for name in (".input/train", "output", f"output/.model.1{UNFINISHED}/model", "logs", ".git"):
        (folder / name).mkdir(parents=True)
    for name in (f".job.json.1{UNFINISHED}", f"output/.model.1{UNFINISHED}/model/m", "output/model.tar.gz", ".git/x"):
        (folder / name).write_text("x")
    (folder / "job.json").write_text(json.dumps(DESCRIBED))
    (tmp_path / "kept" / "deep").mkdir(parents=True)
    (tmp_path / "kept" / "deep" / f".epoch.1{UNFINISHED}").write_text("half")
    (tmp_path / "kept" / ".hidden").write_text("whole")
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def described(run: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((run / "job.json").read_text())
    return told


def test_what_was_half_done_is_removed_and_the_job_has_failed(run: Path) -> None:
    kept = run.parent / "kept"
    assert [e.path for e in Objects(JobFile(run, {}).local_path).under(kept.as_uri())] == [
        ".hidden"
    ]  # is no checkpoint
    abandoned.tidy(str(run / ".input"), json.dumps([str(kept), "/nowhere"]))
    assert files(run) == {"job.json", "output/model.tar.gz", ".git/x"}
    assert sorted(path.name for path in run.iterdir()) == [".git", "job.json", "logs", "output"]
    assert files(kept) == {".hidden"}
    told = described(run)
    assert (told["TrainingJobStatus"], told["SecondaryStatus"], told["RoleArn"]) == ("Failed", "Failed", "x")
    assert told["FailureReason"] == abandoned.LOST
    assert [stage["Status"] for stage in told["SecondaryStatusTransitions"]] == ["Training", "Failed"]
    assert "EndTime" in told["SecondaryStatusTransitions"][0]


@pytest.mark.parametrize("staged", ["", ".input", "{run}", "{run}/output", "{run}/logs/.input"])
def test_what_is_not_ours_is_left_alone(run: Path, staged: str) -> None:
    before = files(run)
    abandoned.tidy(staged.format(run=run), "[]")
    assert files(run) == before
    assert described(run) == DESCRIBED


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"TrainingJobStatus": "InProgress"}'])
def test_a_description_that_is_none_stays(run: Path, content: str) -> None:
    (run / "job.json").write_text(content)
    abandoned.tidy(str(run / ".input"), "not JSON")
    assert (run / "job.json").read_text() == content
    assert not (run / ".input").exists()


def test_the_end_of_a_job_stays_its_end(run: Path) -> None:
    ended = {**DESCRIBED, "TrainingJobStatus": "Completed"}
    (run / "job.json").write_text(json.dumps(ended))
    abandoned.tidy(str(run / ".input"), "")
    assert described(run) == ended


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with finished_or_absent(tmp_path / "x") as file:
            file.write(b"x" * 100)  # stays in the buffer: that the disk is full is found when the file is closed
            _only_bytes(10)

    try:
        with pytest.raises(OSError, match="File too large"):
            write()
    finally:
        _only_bytes(-1)
    assert list(tmp_path.iterdir()) == []
    long = tmp_path / ("n" * 255)
    with finished_or_absent(long) as file:
        file.write(b"1")
    assert long.read_bytes() == b"1"


def _only_bytes(count: int) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
