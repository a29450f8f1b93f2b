"""A save that is interrupted or refused never replaces the last good checkpoint; resuming says what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_jobs import TWO, Job
from smp_jobs import run_ranks


def killed_between_files(folder: str, tag: str, victim: int) -> None:
    """A good checkpoint, then one in which a rank dies after its first file."""
    from smdistributed.modelparallel.torch.checkpoint import atomic

    job = Job()
    job.run(0, 1)
    job.smp.save_checkpoint(folder, tag="good", model=job.model, optimizer=job.optimizer, user_content=1)
    job.run(1, 2)
    write = atomic.save_object

    def write_one(obj: Any, path: Path, **more: Any) -> None:
        write(obj, path, **more)
        if job.smp.rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    atomic.save_object = write_one
    job.smp.save_checkpoint(folder, tag=tag, model=job.model, optimizer=job.optimizer, user_content=2)


def resumed(folder: str) -> Any:
    job = Job(seed=4)
    content = job.smp.resume_from_checkpoint(folder)
    job.smp.save_checkpoint(folder, tag="unused", user_content=None)
    return content, sorted(one.name for one in Path(folder).iterdir()), job.run(1, 2)


@pytest.mark.parametrize(("tag", "victim"), [("next", 1), ("good", 0)])
def test_statement_33_a_rank_killed_between_files_leaves_the_last_good_checkpoint(
    tmp_path: Path, tag: str, victim: int
) -> None:
    """Under another tag and under the same one; what the dead first rank left, the next save removes."""
    ranks = run_ranks(killed_between_files, 2, str(tmp_path), tag, victim, config=TWO, may_fail=[0, 1])
    assert ranks[victim].returncode == -9
    assert "PeerLostError" in ranks[1 - victim].stderr
    assert len(list(tmp_path.glob(f".{tag}_partial.*.filling"))) == (1 if victim == 0 else 0)
    for one in run_ranks(resumed, 2, str(tmp_path), config=TWO):
        content, files, _ = one.report
        assert content == 1
        assert files == ["good_partial", "newest", "unused_partial"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this user may not mount a small file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def filled_disk(folder: str) -> Any:
    from smdistributed.modelparallel.torch.exceptions import CheckpointError

    job = Job()
    job.run(0, 1)
    job.smp.save_checkpoint(folder, tag="a", model=job.model, optimizer=job.optimizer, user_content="small")
    job.run(1, 2)
    said = []
    for partial in (True, False):
        with pytest.raises(CheckpointError) as caught:
            job.smp.save_checkpoint(folder, "b", partial, model=job.model, user_content=torch.ones(1_000_000))
        said.append(str(caught.value))
    left = sorted(one.name for one in Path(folder).iterdir())
    job.run(2, 3)
    return said, left, job.smp.resume_from_checkpoint(folder)


def test_statement_33_a_full_disk_is_told_on_every_rank_and_training_goes_on(small_disk: Path) -> None:
    for one in run_ranks(filled_disk, 2, str(small_disk), config=TWO):
        said, left, content = one.report
        assert all("rank 0: cannot write" in sentence for sentence in said)
        assert all("No space left on device" in sentence and "MiB are free there" in sentence for sentence in said)
        assert "user_content.pt" in said[0]
        assert left == ["a_partial", "newest"]
        assert content == "small"


def wrong_calls(folder: str) -> list[str]:
    from smdistributed.modelparallel.torch.exceptions import SMPError

    job = Job()
    smp, said = job.smp, []

    def note(call: Callable[[], Any]) -> None:
        with pytest.raises(SMPError) as caught:
            call()
        said.append(str(caught.value))

    note(lambda: smp.resume_from_checkpoint(folder))
    note(lambda: smp.resume_from_checkpoint(folder, tag="x"))
    note(lambda: smp.save_checkpoint(folder, tag="a", model=job.model))
    job.run(0, 1)
    note(lambda: smp.save_checkpoint(folder, tag=f"rank{smp.rank()}", model=job.model))
    note(lambda: smp.save_checkpoint(folder, tag=7, model=job.model))
    note(lambda: smp.save_checkpoint(folder, tag="a/b", model=job.model))
    note(lambda: smp.save_checkpoint(folder, tag="a", model=job.model, num_kept_partial_checkpoints=0))
    smp.save_checkpoint(folder, tag="a", model=job.model)
    note(lambda: smp.resume_from_checkpoint(folder, partial=False))
    note(lambda: smp.resume_from_checkpoint(folder))
    note(lambda: smp.save_checkpoint(folder, tag="a_partial", partial=False, model=job.model))
    if smp.rank() == 0:
        (Path(folder) / "a_partial" / "model_1_0.pt").unlink()
    smp.barrier()
    note(lambda: smp.resume_from_checkpoint(folder, load_optimizer=False))
    return said


def test_wrong_use_is_said_in_one_sentence_on_all_ranks(tmp_path: Path) -> None:
    expected = [
        "cannot read",
        "there is no checkpoint",
        "before the model is partitioned",
        "tag is 'rank0' on rank 0 and 'rank1' on rank 1: it must be the same on all ranks",
        "tag is 7: it must be a string",
        "tag is 'a/b': it must be the name of a file",
        "num_kept_partial_checkpoints is 0: it must be a whole number of at least 1",
        "is a_partial, a partial one: pass partial=True",
        "was saved without an optimizer: pass load_optimizer=False",
        "is a folder: choose another tag or path",
        "a_partial lacks model_1_0.pt",
    ]
    for one in run_ranks(wrong_calls, 2, str(tmp_path), config=TWO):
        for found, part in zip(one.report, expected, strict=True):
            assert part in found
            assert "\n" not in found


def test_a_folder_that_was_being_replaced_is_found_and_put_back(tmp_path: Path) -> None:
    """A crash between the two renames of a save under a tag that exists."""
    from smdistributed.modelparallel.torch.checkpoint import folder

    (tmp_path / "a_partial").mkdir()
    (tmp_path / "a_partial" / "old").touch()
    new = folder.filling(tmp_path, "a_partial", "1234")
    new.mkdir()
    (tmp_path / "a_partial").rename(tmp_path / ".a_partial.5678.replaced")
    found = folder.existing(tmp_path, "a_partial")
    assert found is not None
    assert (found / "old").exists()
    folder.remove_leftovers(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["a_partial"]
    assert (tmp_path / "a_partial" / "old").exists()
