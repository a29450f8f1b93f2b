"""A Python from uv's builds: by the real uv, from a list of downloads that is this test's."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.image import pythons
from shoal.image.children import Children


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return an archive as python-build-standalone lays them out, with a shell script for a Python."""
    home = tmp_path / "source" / "python"
    (home / "lib" / "python3.10").mkdir(parents=True)
    (home / "lib" / "python3.10" / "_ssl.so").write_text("a library")
    variables = "# system configuration generated and used by the sysconfig module\nbuild_time_vars = {}\n"
    (home / "lib" / "python3.10" / "_sysconfigdata__linux_x86_64-linux-gnu.py").write_text(variables)
    (home / "bin").mkdir()
    (home / "bin" / "python3.10").write_text("#!/bin/sh\necho Python 3.10.99\n")
    (home / "bin" / "python3.10").chmod(0o755)
    (home / "bin" / "python3").symlink_to("python3.10")
    path = tmp_path / "python.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        packed.add(home, "python")
    return path


def offer(archive: Path, sha256: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell uv of this one download."""
    version = {"major": 3, "minor": 10, "patch": 99, "prerelease": "", "variant": None, "build": "20260101"}
    platform = {"arch": {"family": "x86_64", "variant": None}, "os": "linux", "libc": "gnu"}
    one = {"name": "cpython", **version, **platform, "url": archive.as_uri(), "sha256": sha256}
    listed = archive.with_name("downloads.json")
    listed.write_text(json.dumps({"cpython-3.10.99-linux-x86_64-gnu": one}))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(listed))


def test_it_arrives_as_one_tar_with_its_libraries(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(archive, hashlib.sha256(archive.read_bytes()).hexdigest(), monkeypatch)
    path = pythons.fetch("3.10", tmp_path, tmp_path / "log", Children())
    assert path == tmp_path / "wheelhouse" / "pythons" / "3.10.tar"
    with tarfile.open(path) as packed:
        names = packed.getnames()
    assert {"python/bin/python3", "python/bin/python3.10", "python/lib/python3.10/_ssl.so"} <= set(names)
    assert sorted(one.name for one in path.parent.iterdir()) == [".3.10.lock", "3.10.tar"]


def test_one_that_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    path = tmp_path / "wheelhouse" / "pythons" / "3.10.tar"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"as it was")
    assert pythons.fetch("3.10", tmp_path, tmp_path / "log", Children()).read_bytes() == b"as it was"


def test_a_wrong_hash_is_one_line_and_leaves_nothing(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(archive, "0" * 64, monkeypatch)
    with pytest.raises(ShoalError) as caught:
        pythons.fetch("3.10", tmp_path, tmp_path / "log", Children())
    assert str(caught.value).startswith("Python 3.10: uv: ")
    assert "\n" not in str(caught.value)
    assert "UV_PYTHON_INSTALL_MIRROR" in str(caught.value)
    assert [one.name for one in (tmp_path / "wheelhouse" / "pythons").iterdir()] == [".3.10.lock"]


def test_what_is_out_of_reach_is_one_line(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(archive.with_name("absent.tar.gz"), "0" * 64, monkeypatch)
    with pytest.raises(ShoalError, match=r"^Python 3\.10: uv: .* \(all of it: ") as caught:
        pythons.fetch("3.10", tmp_path, tmp_path / "log", Children())
    assert caught.value.exit_code == 3
