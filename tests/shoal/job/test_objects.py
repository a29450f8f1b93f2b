"""Files and objects of S3 by their URI: the same words for both, one line for whatever goes wrong."""

import io
import os
from pathlib import Path

import pytest
from bucket import Bucket

from shoal.errors import ShoalError
from shoal.job.objects import Entry, Objects, joined
from shoal.job.spec import JobFile
from shoal.job.upload import upload


@pytest.fixture
def objects(tmp_path: Path, s3_address: str) -> Objects:
    return Objects(JobFile(tmp_path / "job.json", {}).local_path, s3_address)


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_what_is_written_is_listed_and_read(objects: Objects, bucket: Bucket, tmp_path: Path, kind: str) -> None:
    base = "file://kept" if kind == "file" else f"s3://{bucket.name}/kept"
    for path in ("b", "a/deep", "c%41 d"):
        objects.write(f"{base}/{path.replace('%', '%25') if kind == 'file' else path}", io.BytesIO(path.encode()))
    found = objects.under(f"{base}/")
    assert [(entry.path, entry.size) for entry in found] == [("a/deep", 6), ("b", 1), ("c%41 d", 6)]
    assert [objects.read(entry.uri) for entry in found] == [b"a/deep", b"b", b"c%41 d"]
    objects.fetch(found[2], tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"c%41 d"
    assert objects.one(found[0].uri) == Entry("deep", found[0].uri, 6)
    assert objects.one(f"{base}/a") is None


def test_a_name_that_is_no_text_is_read_all_the_same(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    (folder / os.fsdecode(b"\xfe 1")).write_text("x")
    objects = Objects(JobFile(tmp_path / "job.json", {}).local_path)
    (entry,) = objects.under(tmp_path.as_uri())
    assert objects.read(entry.uri) == b"x"
    objects.write(joined(folder.as_uri(), os.fsdecode(b"\xfd")), io.BytesIO(b"y"))
    assert (folder / os.fsdecode(b"\xfd")).read_text() == "y"


@pytest.mark.parametrize(
    ("prefix", "paths"),
    [
        ("", ["data/train/1", "data/train/sub/2", "data/train_more/3"]),
        ("data/train/", ["1", "sub/2"]),
        ("data/train", ["1", "sub/2", "train_more/3"]),
        ("data/tr", ["train/1", "train/sub/2", "train_more/3"]),
        ("data/train/1", ["1"]),
        ("nothing", []),
    ],
)
def test_a_prefix_is_a_prefix_of_keys(objects: Objects, bucket: Bucket, prefix: str, paths: list[str]) -> None:
    bucket.put(**{"data/train/": b"", "data/train/1": b"", "data/train/sub/2": b"", "data/train_more/3": b""})
    assert [entry.path for entry in objects.under(f"s3://{bucket.name}/{prefix}")] == paths


def test_a_file_is_fetched_without_a_copy(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    [entry] = objects.under("file://x")
    objects.fetch(entry, tmp_path / "y")
    assert (tmp_path / "y").stat().st_ino == (tmp_path / "x").stat().st_ino


def test_what_is_not_wanted_any_more_is_not_fetched(objects: Objects, bucket: Bucket, tmp_path: Path) -> None:
    bucket.put(big=bytes(20_000_000))
    [entry] = objects.under(f"s3://{bucket.name}/big")
    objects.fetch(entry, tmp_path / "big", lambda: False)
    assert list(tmp_path.iterdir()) == []
    objects.fetch(entry, tmp_path / "big", lambda: True)
    assert (tmp_path / "big").stat().st_size == 20_000_000


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s3://no-such-bucket-here/x", "NoSuchBucket"),
        ("s3://Bad_Bucket!/x", "Invalid bucket name"),
        ("file://nowhere", "cannot be read: No such file or directory"),
    ],
)
def test_what_is_not_there_is_one_line(objects: Objects, bucket: Bucket, uri: str, said: str) -> None:
    with pytest.raises(ShoalError) as raised:
        objects.read(uri)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "nonsense"])
def test_a_server_that_does_not_answer_is_one_line(bucket: Bucket, tmp_path: Path, address: str) -> None:
    objects = Objects(JobFile(tmp_path / "job.json", {}).local_path, address)
    with pytest.raises(ShoalError) as raised:
        objects.under(f"s3://{bucket.name}/x")
    assert address in str(raised.value)


def test_without_credentials_the_line_says_what_to_set(
    objects: Objects, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ShoalError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        objects.under(f"s3://{bucket.name}/x")


class _Enough(Exception):  # noqa: N818 - as the user's wish is one
    pass


@pytest.mark.parametrize("asked", [1, 2])
def test_an_upload_that_is_given_up_leaves_no_object(tmp_path: Path, bucket: Bucket, asked: int) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "large").write_bytes(bytes(20_000_000))
    questions = iter(range(1, 1000))

    def still_wanted() -> None:
        if next(questions) >= asked:
            raise _Enough

    objects = Objects(Path, bucket.endpoint_url)
    with pytest.raises(_Enough):
        upload(objects, tmp_path, f"s3://{bucket.name}/out", None, still_wanted)
    assert bucket.content() == {}
    upload(objects, tmp_path, f"s3://{bucket.name}/out")
    assert list(bucket.content()) == ["out/sub/large"]
