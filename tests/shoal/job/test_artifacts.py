"""The archives a job leaves: merging, names that must not come through, whole or absent."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from shoal.job.artifacts import finished_or_absent, first_file, write_archive


def folder_stream(*members: tuple[str, object], root: str = "model") -> list[bytes]:
    """Return what the engine sends for a folder: (name, bytes | "dir" | (type, link target)) below `root`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in [("", "dir"), *members]:
            info = tarfile.TarInfo(f"{root}/{name}".rstrip("/"))
            info.uid, info.uname, info.mode = 1234, "them", 0o6777
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
                continue
            info.type = tarfile.DIRTYPE
            if isinstance(content, tuple):
                info.type, info.linkname = content
            archive.addfile(info)
    data = buffer.getvalue()
    return [data[i : i + 700] for i in range(0, len(data), 700)]  # chunks that respect no block


def read(path: Path) -> dict[str, bytes | str]:
    with tarfile.open(path) as archive:
        content: dict[str, bytes | str] = {}
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            content[member.name] = file.read() if file else member.linkname or "dir"
        return content


def test_the_content_of_a_folder_is_at_the_root_of_the_archive(tmp_path: Path) -> None:
    big = os.urandom(100_000)
    stream = folder_stream(
        ("model.pt", big), ("sub", "dir"), ("sub/empty", b""), ("sub/link", (tarfile.SYMTYPE, "empty"))
    )
    assert write_archive(tmp_path / "m.tar.gz", [("algo-1", stream)]) == []
    assert read(tmp_path / "m.tar.gz") == {"model.pt": big, "sub": "dir", "sub/empty": b"", "sub/link": "empty"}
    with tarfile.open(tmp_path / "m.tar.gz") as archive:
        member = archive.getmember("model.pt")
    assert (member.uid, member.uname, member.mode) == (0, "", 0o755)


def test_hosts_are_merged_and_the_first_keeps_a_name(tmp_path: Path) -> None:
    hosts = [
        ("algo-1", folder_stream(("same", b"1"), ("d", "dir"), ("d/1", b"1"), ("plain", b"1"))),
        ("algo-2", folder_stream(("same", b"2"), ("d", "dir"), ("d/2", b"2"), ("plain", "dir"), ("plain/x", b"2"))),
    ]
    notes = write_archive(tmp_path / "m.tar.gz", hosts)
    assert read(tmp_path / "m.tar.gz") == {"same": b"1", "d": "dir", "d/1": b"1", "plain": b"1", "d/2": b"2"}
    assert notes == [
        "algo-2: same left out: algo-1 has one of that name",
        "algo-2: plain left out: algo-1 has one of that name",
        "algo-2: plain/x left out: plain of algo-1 is not a folder",
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("../../etc/passwd", b"x"),
        ("a/../../b", b"x"),
        ("link", (tarfile.SYMTYPE, "/etc/passwd")),
        ("link", (tarfile.SYMTYPE, "../outside")),
        ("hard", (tarfile.LNKTYPE, "model/not-there")),
        ("hard", (tarfile.LNKTYPE, "/etc/passwd")),
        ("fifo", (tarfile.FIFOTYPE, "")),
        ("disk", (tarfile.BLKTYPE, "")),
    ],
)
def test_what_is_not_safe_to_unpack_is_left_out(tmp_path: Path, name: str, content: object) -> None:
    notes = write_archive(tmp_path / "m.tar.gz", [("algo-1", folder_stream((name, content), ("good", b"1")))])
    assert read(tmp_path / "m.tar.gz") == {"good": b"1"}
    assert len(notes) == 1
    assert name in notes[0]


def test_nothing_is_put_below_a_link(tmp_path: Path) -> None:
    stream = folder_stream(("link", (tarfile.SYMTYPE, "elsewhere")), ("link/file", b"x"))
    write_archive(tmp_path / "m.tar.gz", [("algo-1", stream)])
    assert read(tmp_path / "m.tar.gz") == {"link": "elsewhere"}


def test_hard_links_stay_links_inside_the_archive(tmp_path: Path) -> None:
    stream = folder_stream(("a", b"1"), ("b", (tarfile.LNKTYPE, "model/a")))
    assert write_archive(tmp_path / "m.tar.gz", [("algo-1", stream)]) == []
    with tarfile.open(tmp_path / "m.tar.gz") as archive:
        archive.extractall(tmp_path / "out")
    assert (tmp_path / "out" / "b").read_bytes() == b"1"


def test_an_archive_that_was_given_up_leaves_nothing(tmp_path: Path) -> None:
    def give_up() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(tmp_path / "m.tar.gz", [("algo-1", folder_stream(("a", b"1")))], give_up)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_stream_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(tarfile.ReadError):
        write_archive(tmp_path / "m.tar.gz", [("algo-1", folder_stream(("a", b"1" * 5000))[:3])])
    assert list(tmp_path.iterdir()) == []


def test_a_finished_file_has_the_modes_of_any_file_of_the_user(tmp_path: Path) -> None:
    with finished_or_absent(tmp_path / "x") as file:
        file.write(b"1")
        assert not (tmp_path / "x").exists()
    (tmp_path / "y").write_bytes(b"1")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode


def test_first_file() -> None:
    assert first_file(folder_stream(("failure", b"why"), root=".")) == b"why"
