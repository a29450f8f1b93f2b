"""Fetching a row's wheels with the host's own pip: from a local folder here, so that no network is needed."""

import hashlib
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.image import wheelhouse
from shoal.image.children import Children, StoppedError
from shoal.image.versions_file import load

ROW = load(Path(__file__).resolve().parents[3] / "versions.yaml").row("2.13-cpu")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository whose row needs one package, and a host whose pip knows one folder and no index."""
    (tmp_path / "images" / "locks").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    lock(tmp_path, wheel(tmp_path / "links"))
    return tmp_path


def wheel(folder: Path) -> str:
    """Write a wheel that pip takes for one; return its hash."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lock(root: Path, sha256: str) -> None:
    for name in ("row.txt", "build-py311.txt", "container-py311.txt"):
        (root / "images" / "locks" / name).write_text(f"tiny==1.0 --hash=sha256:{sha256}\n")


def test_wheels_of_a_local_folder_are_taken(root: Path) -> None:
    wheels = wheelhouse.fetch("row", ROW, root, root / "log")
    assert [str(path.relative_to(root / "wheelhouse")) for path in wheels] == [
        f"{lock}/tiny-1.0-py3-none-any.whl" for lock in ("row", "build-py311", "container-py311")
    ]


def test_a_wheel_that_several_locks_name_is_one_file(root: Path) -> None:
    wheels = wheelhouse.fetch("row", ROW, root, root / "log")
    assert len(wheels) == 3
    assert len({path.stat().st_ino for path in wheels}) == 1


def test_what_one_row_has_fetched_another_is_not_asked_for(root: Path) -> None:
    wheelhouse.fetch("row", ROW, root, root / "log")
    (root / "links" / "tiny-1.0-py3-none-any.whl").unlink()
    shutil.copy(root / "images" / "locks" / "row.txt", root / "images" / "locks" / "other.txt")
    assert len(wheelhouse.fetch("other", ROW, root, root / "log")) == 3


def test_rows_that_fetch_the_same_lock_at_once(root: Path) -> None:
    names = [f"row{number}" for number in range(4)]
    for name in names:
        shutil.copy(root / "images" / "locks" / "row.txt", root / "images" / "locks" / f"{name}.txt")
    with ThreadPoolExecutor(len(names)) as pool:
        fetched = list(pool.map(lambda name: wheelhouse.fetch(name, ROW, root, root / f"{name}.log"), names))
    assert {path.stat().st_ino for wheels in fetched for path in wheels} == {fetched[0][0].stat().st_ino}
    assert all(path.is_file() for wheels in fetched for path in wheels)


def test_a_download_that_was_killed_half_way_leaves_no_folder_that_passes_for_whole(root: Path) -> None:
    children = Children()
    children.stop()
    with pytest.raises(StoppedError):
        wheelhouse.fetch("row", ROW, root, root / "log", children)
    assert not (root / "wheelhouse" / "row").exists()
    assert len(wheelhouse.fetch("row", ROW, root, root / "log")) == 3


def test_nothing_is_asked_twice(root: Path) -> None:
    wheelhouse.fetch("row", ROW, root, root / "log")
    (root / "links" / "tiny-1.0-py3-none-any.whl").unlink()
    wheelhouse.fetch("row", ROW, root, root / "log")


def test_a_changed_lock_is_asked_for_anew(root: Path) -> None:
    wheelhouse.fetch("row", ROW, root, root / "log")
    lock(root, "0" * 64)
    with pytest.raises(ShoalError, match="THESE PACKAGES DO NOT MATCH THE HASHES"):
        wheelhouse.fetch("row", ROW, root, root / "log")


def test_a_wheel_that_is_nowhere(root: Path) -> None:
    (root / "links" / "tiny-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ShoalError) as caught:
        wheelhouse.fetch("row", ROW, root, root / "log")
    assert str(caught.value).startswith("row.txt: No matching distribution found for tiny==1.0 (looked where ")
    assert "give pip a find-links folder or an index that has it" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_lock_says_how_to_make_it(root: Path) -> None:
    with pytest.raises(ShoalError, match=r"images/locks/other\.txt: no such lock: run `shoal lock other`"):
        wheelhouse.fetch("other", ROW, root, root / "log")
