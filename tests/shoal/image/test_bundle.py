"""Bundles: what is written is what is read, and anything else is refused in one line before it is used."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import ShoalError
from shoal.image.bundle import bundle
from shoal.image.bundle.bundle import Inputs

ROOT = Path(__file__).resolve().parents[3]
WANTED = Inputs(
    row="a-row", machine="x86_64", base="debian12", base_recipe="abc", locks={"a-row.txt": "0" * 64}, apt=[["g++"]]
)

CONTENTS = {"wheels/a/b.whl": b"wheel" * 1000, "debs/0/c_1%2b2.deb": b"deb", "base.tar.gz": b""}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Return a small bundle."""
    return write(tmp_path, tmp_path / "a.tar")


def write(folder: Path, output: Path) -> Path:
    files = {}
    for member, content in CONTENTS.items():
        path = folder / member.replace("/", "-")
        path.write_bytes(content)
        files[member] = path
    bundle.write(files, WANTED, "sha256:1234", output)
    return output


def unpack(path: Path, wanted: Inputs = WANTED) -> Path:
    into = path.parent / "into"
    into.mkdir()
    bundle.unpack(path, wanted, into)
    return into


def test_what_is_written_is_read(made: Path) -> None:
    into = unpack(made)
    found = {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}
    assert found == CONTENTS


def test_the_same_files_make_the_same_bundle(made: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    again = write(tmp_path / "again", tmp_path / "again" / "b.tar")
    assert again.read_bytes() == made.read_bytes()


def test_it_says_its_own_sha256(tmp_path: Path) -> None:
    output = tmp_path / "a.tar"
    digest = bundle.write({}, WANTED, "sha256:1234", output)
    assert digest == hashlib.sha256(output.read_bytes()).hexdigest()


@pytest.mark.parametrize("tenths", range(10))
def test_a_truncated_one_is_refused(made: Path, tenths: int) -> None:
    with tarfile.open(made) as archive:
        last = archive.getmembers()[-1]
    made.write_bytes(made.read_bytes()[: (last.offset_data + last.size) * tenths // 10])
    with pytest.raises(ShoalError, match=r"not a whole bundle|is not whole|not a bundle|SHA-256 is") as caught:
        unpack(made)
    assert "\n" not in str(caught.value)


def test_one_that_ends_between_two_members_is_refused(made: Path) -> None:
    with tarfile.open(made) as archive:
        last = archive.getmembers()[-1]
    made.write_bytes(made.read_bytes()[: last.offset])
    with pytest.raises(ShoalError, match=r"ends without wheels/a/b\.whl: the bundle is not whole, copy it again"):
        unpack(made)


@pytest.mark.parametrize("member", ["wheels/a/b.whl", "debs/0/c_1%2b2.deb"])
def test_a_changed_byte_is_refused(made: Path, member: str) -> None:
    content = bytearray(made.read_bytes())
    with tarfile.open(made) as archive:
        content[archive.getmember(member).offset_data] ^= 1
    made.write_bytes(content)
    with pytest.raises(ShoalError, match=r": SHA-256 is [0-9a-f]{64}, its manifest says .* altered") as caught:
        unpack(made)
    assert member in str(caught.value)


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the bundle again with another manifest, everything else as it was."""
    with tarfile.open(path) as archive:
        entries = [(entry, archive.extractfile(entry)) for entry in archive]
        contents = [(entry.name, stream.read()) for entry, stream in entries if stream is not None]
    manifest = json.loads(contents[0][1])
    change(manifest)
    contents[0] = (contents[0][0], json.dumps(manifest).encode())
    with tarfile.open(path, "w") as archive:
        for name, content in contents:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda manifest: manifest.update(format=2), r"manifest\.json: format: .*make the bundle anew"),
        (lambda manifest: manifest.pop("members"), r"manifest\.json: members: "),
        (lambda manifest: manifest["members"].pop("base.tar.gz"), r"base\.tar\.gz: not in its manifest"),
        (lambda manifest: manifest["members"].update({"a": "0" * 64}), r"ends without a: the bundle is not whole"),
        (lambda manifest: manifest["members"].update({"../a": "0" * 64}), r"manifest\.json: members\.\.\./a"),
        (lambda manifest: manifest["members"].update({"/a": "0" * 64}), r"manifest\.json: members\./a"),
        (lambda manifest: manifest["members"].update({"a": "0"}), r"manifest\.json: members\.a: "),
    ],
)
def test_a_manifest_that_is_not_right_is_refused(
    made: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    rewrite(made, change)
    with pytest.raises(ShoalError, match=says) as caught:
        unpack(made)
    assert "\n" not in str(caught.value)
    assert not (made.parent / "a").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"row": "b-row"}, r"made for another row \(a-row, not b-row\): make one of .* `shoal bundle b-row`"),
        ({"machine": "aarch64"}, r"made for another kind of machine \(x86_64, not aarch64\)"),
        ({"base_recipe": "x"}, r"made for a base made in another way"),
        ({"locks": {"a-row.txt": "1" * 64}}, r"made for other versions of Python packages: "),
        ({"apt": [["gcc"]]}, r"made for other Debian packages: "),
    ],
)
def test_one_of_something_else_is_refused(made: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ShoalError, match=says):
        unpack(made, WANTED.model_copy(update=change))
    assert list((made.parent / "into").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\0" * 10240])
def test_what_is_no_bundle_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    with pytest.raises(ShoalError, match=r"not a whole bundle|not a bundle"):
        unpack(path)


def test_a_full_disk_leaves_no_half_a_bundle(made: Path, tmp_path: Path) -> None:
    output = tmp_path / "full.tar"
    (tmp_path / "full.tar.partial").symlink_to("/dev/full")
    with pytest.raises(ShoalError, match=r"full\.tar: cannot be written: No space left on device"):
        bundle.write({"base.tar.gz": made}, WANTED, "sha256:1234", output)
    assert not output.exists()
    assert not output.with_name("full.tar.partial").is_symlink()


def shoal(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bundle", "2.12-cpu"), "no row '2.12-cpu'"),
        (("bundle", "2.13-cpu", "--output", "/dev/null/x/a.tar"), "/dev/null/x/a.tar: cannot be written: "),
        (("bundle", "2.13-cpu", "--output", "docs"), "docs: cannot be written: Is a directory: name another file"),
        (("build", "2.13-cpu", "--bundle", "a.tar"), "--bundle FILE is for --offline"),
        (("build", "2.13-cpu", "--offline", "--bundle", "/nowhere/a.tar"), "/nowhere/a.tar: cannot be unpacked: No "),
        (("build", "2.13-cpu", "--offline", "--bundle", "/"), "/: cannot be unpacked: Is a directory"),
        (("build", "2.13-cpu", "--offline", "--bundle", "README.md"), "README.md: not a whole bundle"),
    ],
)
def test_the_command_line_says_it_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    done = shoal(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("checking ")] == [
        done.stderr.splitlines()[-1]
    ]
    assert "Traceback" not in done.stderr
