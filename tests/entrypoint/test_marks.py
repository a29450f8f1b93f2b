"""What the marks of an unchanged script take for a step: from the events of a training loop alone, without torch.

tests/smddp and tests/modelparallel have the marks of real scripts.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from shoal_entrypoint import marks
from shoal_entrypoint.marks import Watch
from shoal_entrypoint.steps import Steps


class Loop:
    """A training loop by a clock of its own, and the lines that it leaves in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = Steps(str(folder))
        self.now = 1000.0
        self.watch = self.steps.sources = Watch(self.steps, lambda: self.now)

    def lasts(self, seconds: float) -> None:
        self.now += seconds

    def fetch(self, *, evaluates: bool = False) -> None:
        self.watch.fetches(lambda: self.lasts(1), evaluates)

    def run_out(self) -> None:
        """Come to the loader's end."""

        def end() -> None:
            raise StopIteration

        with pytest.raises(StopIteration):
            self.watch.fetches(end, False)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for file in self.folder.iterdir() for line in file.read_text().splitlines()]


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


@pytest.fixture
def optimizer() -> object:
    return object()


def test_steps_lie_between_an_optimizer_s(loop: Loop, optimizer: object) -> None:
    for _ in range(3):
        loop.fetch()
        loop.lasts(5)
        loop.fetch()  # gradients of two batches in a step
        loop.lasts(5)
        loop.watch.stepped(optimizer)
    found = loop.lines()
    assert [line["Step"] for line in found] == [0, 1, 2]
    assert [(line["Seconds"], line["DataSeconds"]) for line in found] == [(12, 2)] * 3
    # Nobody has told of collectives.
    assert all("CollectiveSeconds" not in line and "CollectiveBytes" not in line for line in found)


def test_without_a_loader_the_first_step_has_no_known_beginning(loop: Loop, optimizer: object) -> None:
    for _ in range(3):
        loop.lasts(5)
        loop.watch.stepped(optimizer)
    assert [line["Seconds"] for line in loop.lines()] == [5, 5]


def test_what_lies_between_epochs_is_of_no_step(loop: Loop, optimizer: object) -> None:
    for _ in range(2):
        loop.fetch()
        loop.lasts(5)
        loop.watch.stepped(optimizer)
        loop.run_out()
        loop.lasts(50)
        loop.fetch(evaluates=True)  # to no end
        loop.lasts(50)
    assert [(line["Seconds"], line["DataSeconds"]) for line in loop.lines()] == [(6, 1)] * 2


def test_a_checkpoint_between_two_steps_is_the_next_one_s(loop: Loop, optimizer: object) -> None:
    for _ in range(3):
        loop.fetch()
        loop.watch.saves(lambda: loop.lasts(2))
        loop.watch.stepped(optimizer)
        loop.run_out()
        loop.watch.saves(lambda: loop.watch.saves(lambda: loop.lasts(10)))  # of one in another, the outer counts
        loop.lasts(50)
    assert [(line["Seconds"], line["CheckpointSeconds"]) for line in loop.lines()] == [(3, 2), (13, 12), (13, 12)]


def test_a_checkpoint_after_the_last_step_of_a_loop_is_not_lost(loop: Loop, optimizer: object) -> None:
    for _ in range(2):
        loop.fetch()
        loop.watch.stepped(optimizer)
        loop.watch.saves(lambda: loop.lasts(10))
        loop.run_out()
    assert [(line["Seconds"], line["CheckpointSeconds"]) for line in loop.lines()] == [(1, 0), (11, 10)]


@pytest.mark.parametrize(
    ("calls", "steps"),
    [
        ("aaaa", 4),
        ("abababab", 4),  # two networks, one loop
        ("abbabb", 4),  # the one that steps more often
        ("aabbbb", 5),  # the first one is not used any more: the second call of the other shows that
    ],
)
def test_of_several_optimizers_one_counts(loop: Loop, calls: str, steps: int) -> None:
    optimizers = {name: object() for name in calls}
    loop.fetch()
    for name in calls:
        loop.watch.stepped(optimizers[name])
    assert len(loop.lines()) == steps


def test_only_what_the_training_thread_waits_for_counts(loop: Loop, optimizer: object) -> None:
    loop.fetch()
    ahead = threading.Thread(target=loop.fetch)
    ahead.start()
    ahead.join()
    loop.watch.fetches(loop.fetch, False)  # a loader over a loader
    loop.watch.stepped(optimizer)
    (line,) = loop.lines()
    assert (line["Seconds"], line["DataSeconds"]) == (3, 2)


def test_marks_of_the_script_win(loop: Loop, optimizer: object) -> None:
    loop.watch.counting.add(lambda: {"all_reduce": (1, 8, 0.0, 0.0)})
    for _ in loop.steps(range(3)):
        loop.fetch()
        with loop.steps.collective(5):
            pass
        loop.watch.stepped(optimizer)
    found = loop.lines()
    assert [line["Step"] for line in found] == [0, 1, 2]
    assert all(line["CollectiveBytes"] == 5 and "Collectives" not in line for line in found)
    assert all(line["DataSeconds"] < 1 for line in found)  # what its own mark has measured, by the real clock


def test_parts_are_no_longer_than_their_step(loop: Loop, optimizer: object) -> None:
    """Several threads may wait for collectives at once."""
    told = 0

    def counters() -> Mapping[str, tuple[int, int, float, float]]:
        nonlocal told
        told += 1
        return {"all_reduce": (told, 1000 * told, 0.5 * told, 1000.0 * told), "barrier": (1, 0, 0.0, 0.0)}

    loop.watch.counting.add(counters)
    loop.fetch()
    loop.lasts(5)
    loop.watch.stepped(optimizer)
    (line,) = loop.lines()
    parts = [line[name] for name in ("DataSeconds", "CheckpointSeconds", "CollectiveSeconds")]
    assert sum(parts) == pytest.approx(line["Seconds"])
    assert line["Collectives"] == {"all_reduce": {"Calls": 1, "Bytes": 1000, "Seconds": 0.5, "BytesPerSecond": 2000.0}}


def test_counters_that_fail_are_asked_no_more(loop: Loop, optimizer: object) -> None:
    def broken() -> Mapping[str, tuple[int, int, float, float]]:
        raise RuntimeError

    loop.watch.counting.add(broken)
    loop.fetch()
    loop.watch.stepped(optimizer)
    assert "CollectiveSeconds" not in loop.lines()[0]


def test_what_cannot_be_seen_is_not_taken_for_nothing(loop: Loop, optimizer: object) -> None:
    loop.watch.counting.add(lambda: {"all_reduce": (1, 8, 0.0, 0.0)})
    loop.watch.incomplete()
    loop.fetch()
    loop.watch.stepped(optimizer)
    assert "CollectiveSeconds" not in loop.lines()[0]


def test_a_forked_process_is_no_rank(loop: Loop, optimizer: object) -> None:
    loop.fetch()
    loop.watch.stepped(optimizer)
    child = os.fork()
    if child == 0:
        loop.watch.stepped(optimizer)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(loop.lines()) == 1


def test_nothing_is_watched_where_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_OUTPUT_DIR", str(tmp_path))
    assert marks.watch() is None
