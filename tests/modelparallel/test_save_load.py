"""`smp.save` and `smp.load`: names, probing, atomic writes, errors that name the file and the cause."""

from __future__ import annotations

import argparse
import errno
import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from smdistributed.modelparallel.torch.checkpoint import atomic, names
from smdistributed.modelparallel.torch.checkpoint.reading import read_object
from smdistributed.modelparallel.torch.exceptions import CheckpointError
from smp_jobs import SOURCES, run_ranks


def roundtrip(folder: str) -> dict[str, Any]:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    path = f"{folder}/state.pt"
    mine = {"rank": smp.rank(), "tensor": torch.full((2,), float(smp.rank()))}
    if smp.rdp_rank() == 0:
        smp.save(mine, path, partial=True)
    smp.save(mine, f"{folder}/each.pt", partial=True, v3=True)
    if smp.rank() == 0:
        smp.save(mine, f"{folder}/full.pt", partial=False)
    smp.barrier()
    return {
        "files": sorted(one.name for one in Path(folder).iterdir()),
        "partial": smp.load(path, partial=True)["rank"],
        "each": smp.load(f"{folder}/each.pt")["tensor"].tolist(),
        "full": smp.load(f"{folder}/full.pt", partial=False, map_location="cpu")["rank"],
    }


def test_statement_32_one_file_a_rank_or_one_in_all(tmp_path: Path) -> None:
    config = '{"partitions": 2, "microbatches": 2, "ddp": true}'
    ranks = run_ranks(roundtrip, 4, str(tmp_path), config=config)
    for one in ranks:
        assert one.report == {
            "files": [
                *[f"each.pt_{pp}_0_{rdp}" for pp in (0, 1) for rdp in (0, 1)],
                *["full.pt", "state.pt_0", "state.pt_1"],
            ],
            "partial": one.rank % 2,
            "each": [float(one.rank)] * 2,
            "full": 0,
        }


def test_statement_32_with_tensor_parallelism_the_name_has_both_ranks(tmp_path: Path) -> None:
    config = '{"partitions": 2, "tensor_parallel_degree": 2, "ddp": true}'
    ranks = run_ranks(roundtrip, 4, str(tmp_path), config=config)
    assert [name for name in ranks[0].report["files"] if name.startswith("state")] == [
        "state.pt_0_0",
        "state.pt_0_1",
        "state.pt_1_0",
        "state.pt_1_1",
    ]
    assert [one.report["partial"] for one in ranks] == [0, 1, 2, 3]


def test_names_are_probed_from_the_newest_scheme_to_the_oldest() -> None:
    assert names.probed("a.pt", names.Place(1, 0, 3), mp_rank=1) == ["a.pt_1_0_3", "a.pt_1_0", "a.pt_1"]
    assert names.written("a.pt", names.Place(1, 0, 3), tp_size=1, v3=False) == "a.pt_1"
    assert names.part("model", names.Place(1, 0, 3), per_replica=False) == "model_1_0.pt"
    assert names.part("optimizer", names.Place(1, 0, 3), per_replica=True) == "optimizer_1_0_3.pt"


def refusals(folder: str) -> list[str]:
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.torch.exceptions import SMPError

    smp.init()
    base = f"{folder}/x.pt"
    smp.save({"a": 1}, base, partial=False)
    smp.save(argparse.Namespace(lr=1.0), f"{folder}/args.pt", partial=True)
    calls: list[Any] = [
        lambda: smp.load(base, partial=True),
        lambda: smp.load(f"{folder}/none.pt", partial=False),
        lambda: smp.load(f"{folder}/args.pt"),
        lambda: smp.save({}, io.BytesIO()),  # type: ignore[arg-type]
        lambda: smp.save({}, f"{folder}/no/such/x.pt"),
    ]
    said = []
    for call in calls:
        with pytest.raises(SMPError) as caught:
            call()
        said.append(str(caught.value))
    assert smp.load(f"{folder}/args.pt", weights_only=False).lr == 1.0
    return said


def test_refusals_say_what_and_why(tmp_path: Path) -> None:
    said = run_ranks(refusals, 1, str(tmp_path))[0].report
    assert "no part of" in said[0]
    assert "there is a full checkpoint of that name: pass partial=False" in said[0]
    assert said[1] == f"cannot read {tmp_path}/none.pt: No such file or directory"
    assert "argparse.Namespace" in said[2]
    assert "pass weights_only=False if you trust the file" in said[2]
    assert said[3].startswith("smp.save: f is <_io.BytesIO object")
    assert said[3].endswith(": it must be a path")
    assert "does not exist: create it first" in said[4]
    assert not [one for one in said if "\n" in one]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    atomic.save_object({"a": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r"model\.pt is no file of torch.save, or is damaged"):
        read_object(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model\.pt is no file of torch.save, or is damaged"):
        read_object(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this user may not mount a small file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_leaves_the_last_good_file(small_disk: Path) -> None:
    path = small_disk / "model.pt"
    atomic.save_object({"a": torch.arange(100)}, path)
    with pytest.raises(CheckpointError, match=r"cannot write .*model.pt: No space left on device \(0\.\d MiB are free"):
        atomic.save_object({"a": torch.ones(10_000_000)}, path)
    assert [one.name for one in small_disk.iterdir()] == ["model.pt"]
    assert torch.equal(torch.load(path)["a"], torch.arange(100))


def test_no_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may write anywhere, and tests run as root
    with pytest.raises(CheckpointError, match=r"cannot write .*x.pt: Permission denied: this process \(user \d+\) may"):
        atomic.save_object({}, tmp_path / "x.pt")


def test_a_rank_killed_while_it_writes_leaves_the_last_good_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    atomic.save_object({"a": 1}, path)
    script = f"""
        import os, signal, sys
        from pathlib import Path
        from smdistributed.modelparallel.torch.checkpoint import atomic
        def write(file):
            file.write(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)
        atomic.write_file(Path({str(path)!r}), write)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, "PYTHONPATH": str(SOURCES)}, check=False
    )
    assert ended.returncode == -9
    assert torch.load(path) == {"a": 1}


def test_what_cannot_be_pickled_leaves_the_last_good_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    atomic.save_object({"a": 1}, path)
    with pytest.raises(Exception, match="pickle"):
        atomic.save_object({"a": lambda: 1}, path)
    assert torch.load(path) == {"a": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["model.pt"]
