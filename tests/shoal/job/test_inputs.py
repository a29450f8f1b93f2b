"""What channels bring: manifests, shares, the order of epochs, and what is told before anything is begun."""

import gzip
import itertools
import json
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket

from shoal.errors import ShoalError
from shoal.job import channels, staging
from shoal.job.channels import Channel
from shoal.job.objects import Objects
from shoal.job.pipes import Pipes
from shoal.job.plan import Mount
from shoal.job.recordio import record
from shoal.job.spec import JobFile
from shoal.job.survey import Survey, survey

MAGIC = struct.pack("<I", 0xCED7230A)
HOSTS = ("algo-1", "algo-2")


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    for index in range(5):
        (tmp_path / "data" / "sub").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / ("sub" if index > 2 else ".") / f"{index}").write_text(f"<{index}>")
    return Objects(JobFile(tmp_path / "job.json", {}).local_path)


def channel(**changes: Any) -> Channel:
    plain = Channel("train", "File", "S3Prefix", "file://data", HOSTS, False, (), False, False, None)
    return Channel(**{**plain.__dict__, **changes})


def names(found: Survey, host: str, epoch: int = 0) -> list[str]:
    return [piece.entry.path for parts in found.of_host(host, epoch) for piece in parts if piece.entry]


def test_only_what_is_not_mounted_is_looked_at(objects: Objects) -> None:
    plain = [channel(), channel(mode="FastFile"), channel(sharded=True, hosts=("algo-1",))]
    assert survey(plain, objects) == ()
    others = [channel(sharded=True), channel(mode="Pipe"), channel(uri="s3://b/k")]
    assert [each.is_mounted for each in others] == [False] * 3


def test_shards_are_all_objects_once(objects: Objects) -> None:
    [found] = survey([channel(sharded=True)], objects)
    assert names(found, "algo-1") == ["0", "2", "sub/4"]
    assert names(found, "algo-2") == ["1", "sub/3"]


def test_shuffled_the_order_is_another_in_each_epoch_and_the_same_in_each_run(objects: Objects) -> None:
    [found] = survey([channel(mode="Pipe", seed=7, sharded=True)], objects)
    epochs = [[names(found, host, epoch) for host in HOSTS] for epoch in range(6)]
    assert epochs == [[names(found, host, epoch) for host in HOSTS] for epoch in range(6)]
    assert len({json.dumps(epoch) for epoch in epochs}) > 1
    everything = sorted(names(survey([channel(mode="Pipe")], objects)[0], "algo-1"))
    for shares in epochs:
        assert sorted(shares[0] + shares[1]) == everything


def test_a_manifest_names_its_objects(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "m").write_text(json.dumps([{"prefix": "file://data/"}, "sub/3", "0"]))
    [found] = survey([channel(data_type="ManifestFile", uri="file://m")], objects)
    assert names(found, "algo-1") == ["sub/3", "0"]
    (tmp_path / "m").write_text(json.dumps(["file://data/sub/3"]))
    [found] = survey([channel(data_type="ManifestFile", uri="file://m")], objects)
    assert names(found, "algo-1") == ["3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "{} is no manifest"),
        ("[]", "[] is no manifest"),
        ("[3]", "3 is no path"),
        ("[" * 100_000, "is not JSON"),
        ('[{"prefix": "file://data/"}]', "m has a prefix and no path after it"),
        ('["0"]', "'0' is no URI"),
        ('[{"prefix": "file://data/"}, "9"]', "there is no file://data/9"),
        ('[{"prefix": "file://data/"}, "sub/../0"]', "'sub/../0' is no path of a file"),
        ('[{"prefix": "file://data/"}, "0", "0"]', "'0' is there twice"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_told(objects: Objects, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m").write_text(text)
    with pytest.raises(ShoalError) as raised:
        survey([channel(data_type="ManifestFile", uri="file://m")], objects)
    assert said in str(raised.value)


def test_a_key_too_long_for_a_file_is_told(objects: Objects, bucket: Bucket) -> None:
    bucket.put(**{f"long/{'é' * 127}": b"1"})
    there = Objects(objects.local_path, bucket.endpoint_url)
    asked = channel(uri=f"s3://{bucket.name}/long/")
    assert len(survey([asked], there)[0].records) == 1
    bucket.put(**{f"long/{'é' * 128}": b"1"})
    with pytest.raises(ShoalError, match="a file's name has 255 bytes at most: use InputMode Pipe"):
        survey([asked], there)
    assert len(survey([channel(uri=asked.uri, mode="Pipe")], there)[0].records) == 2


def test_nothing_there_is_told(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShoalError, match="channel train: there is nothing at file://empty"):
        survey([channel(mode="Pipe", uri="file://empty")], objects)


def test_staged_folders_hold_each_hosts_share(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "m").write_text(json.dumps([{"prefix": "file://data/"}, "sub/3", "0"]))
    found = survey([channel(sharded=True), channel(name="m", data_type="ManifestFile", uri="file://m")], objects)
    mounts = staging.stage(found, objects, tmp_path / ".input", lambda: True)
    shared = Mount(tmp_path / ".input" / "all" / "m", "/opt/ml/input/data/m")
    assert mounts == {
        host: [Mount(tmp_path / ".input" / host / "train", "/opt/ml/input/data/train"), shared] for host in HOSTS
    }
    files = {str(p.relative_to(tmp_path / ".input")) for p in (tmp_path / ".input").rglob("*") if p.is_file()}
    assert files == {
        *("algo-1/train/0", "algo-1/train/2", "algo-1/train/sub/4", "algo-2/train/1", "algo-2/train/sub/3"),
        *("all/m/0", "all/m/sub/3"),
    }
    assert staging.amount(found) == "train: 5 objects, 15 B, m: 2 objects, 6 B"


def read_record(data: bytes) -> Iterator[bytes]:
    """Yield the records of a stream, as the format's own readers do."""
    whole = b""
    while data:
        magic, word = struct.unpack("<II", data[:8])
        kind, length = word >> 29, word & (1 << 29) - 1
        assert magic == 0xCED7230A
        whole += (MAGIC if kind in (2, 3) else b"") + data[8 : 8 + length]
        data = data[8 + length + -length % 4 :]
        if kind in (0, 3):
            yield whole
            whole = b""


@pytest.mark.parametrize("data", [b"", b"a", b"abcd", MAGIC, b"abcd" + MAGIC + b"x", b"a" + MAGIC, MAGIC * 3 + b"yz"])
def test_a_record_is_read_back(data: bytes) -> None:
    framed = record(data)
    assert len(framed) % 4 == 0
    assert list(read_record(framed + record(b"next"))) == [data, b"next"]


@pytest.fixture
def piped(objects: Objects, tmp_path: Path) -> Iterator[Any]:
    """Start pipes for a channel; afterwards nothing may have gone wrong that the test did not take."""
    errors: list[ShoalError] = []
    made: list[Pipes] = []
    seen = threading.Event()

    def report(error: ShoalError) -> None:
        errors.append(error)
        seen.set()

    def start(**changes: Any) -> Path:
        found = survey([channel(mode="Pipe", hosts=("algo-1",), **changes)], objects)
        pipes = Pipes(found, objects, tmp_path / "pipes", report)
        made.append(pipes)
        folder = pipes.folders()["algo-1"]
        pipes.feed()
        return folder

    start.errors, start.seen = errors, seen  # type: ignore[attr-defined]
    yield start
    for pipes in made:
        pipes.stop()
    assert errors == []


def test_each_epoch_has_its_pipe(piped: Any) -> None:
    folder = piped()
    for epoch in range(3):
        assert (folder / f"train_{epoch}").read_bytes() == b"<0><1><2><3><4>"
    assert (folder / "train_3").is_fifo()


def test_an_epoch_may_be_left_early(piped: Any, tmp_path: Path) -> None:
    (tmp_path / "data" / "0").write_bytes(b"x" * 1_000_000)  # more than a pipe holds
    folder = piped()
    with (folder / "train_0").open("rb") as pipe:
        assert pipe.read(10) == b"x" * 10
    assert (folder / "train_1").read_bytes()[-12:] == b"<1><2><3><4>"


def test_records_of_gzipped_objects(piped: Any, tmp_path: Path) -> None:
    for path in (tmp_path / "data").rglob("[0-9]"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    folder = piped(record_io=True, gzip=True)
    assert list(read_record((folder / "train_0").read_bytes())) == [b"<0>", b"<1>", b"<2>", b"<3>", b"<4>"]


def test_what_is_no_gzip_is_reported(piped: Any) -> None:
    folder = piped(gzip=True)
    assert (folder / "train_0").read_bytes() == b""
    assert piped.seen.wait(20)
    assert "data/0 is not gzip" in str(piped.errors.pop())


def test_an_augmented_manifest_sends_the_attributes_asked_for(piped: Any, tmp_path: Path) -> None:
    lines = [{"image-ref": f"file://data/{i}", "label": {"class": i}, "name": f"n{i}"} for i in range(2)]
    (tmp_path / "m").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = piped(
        data_type="AugmentedManifestFile",
        uri="file://m",
        attributes=("image-ref", "label", "name"),
        record_io=True,
    )
    sent = [b"<0>", b'{"class": 0}', b"n0", b"<1>", b'{"class": 1}', b"n1"]
    assert list(read_record((folder / "train_0").read_bytes())) == sent


def test_an_attribute_that_is_missing_is_told(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"a": 1}\n\n{"b": 1}\n')
    augmented = channel(mode="Pipe", data_type="AugmentedManifestFile", uri="file://m", attributes=("a",))
    with pytest.raises(ShoalError, match="file://m line 3: there is no attribute 'a': it has b"):
        survey([augmented], objects)


Request = dict[str, Any]


def source(request: Request, **fields: Any) -> None:
    request["InputDataConfig"][0]["DataSource"]["S3DataSource"].update(fields)


def of_channel(request: Request, **fields: Any) -> None:
    request["InputDataConfig"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "fields", "expected"),
    [
        (source, {"S3Uri": "https://h/b/k"}, "DataSource.S3DataSource.S3Uri: 'https://h/b/k' cannot be read: only"),
        (source, {"S3DataType": "Converse"}, "DataSource.S3DataSource.S3DataType: Converse cannot be run here"),
        (
            source,
            {"S3DataType": "AugmentedManifestFile", "AttributeNames": ["a"]},
            "DataSource.S3DataSource.S3DataType: AugmentedManifestFile does not go with File",
        ),
        (of_channel, {"CompressionType": "Gzip"}, "CompressionType: Gzip does not go with File: only with Pipe"),
        (of_channel, {"RecordWrapperType": "RecordIO"}, "RecordWrapperType: RecordIO does not go with File"),
    ],
)
def test_channels_that_are_refused(request_: Request, change: Any, fields: Request, expected: str) -> None:
    change(request_, **fields)
    assert [str(problem).startswith(f"InputDataConfig[0].{expected}") for problem in channels.refusals(request_)] == [
        True
    ]


def test_manifests_do_not_go_with_fastfile(request_: Request) -> None:
    of_channel(request_, InputMode="FastFile")
    source(request_, S3DataType="ManifestFile")
    [problem] = channels.refusals(request_)
    assert problem.text == "ManifestFile does not go with FastFile: S3Prefix does"


def test_a_channel_cannot_have_the_name_of_a_pipe(request_: Request) -> None:
    request_["InputDataConfig"] += json.loads(json.dumps(request_["InputDataConfig"]))
    request_["InputDataConfig"][0]["InputMode"] = "Pipe"
    request_["InputDataConfig"][1]["ChannelName"] = "train_0"
    [problem] = channels.refusals(request_)
    assert str(problem) == "InputDataConfig[1].ChannelName: 'train_0' is the name of an epoch's pipe of channel 'train'"


def test_pipes_are_for_whoever_the_script_is(objects: Objects, tmp_path: Path) -> None:
    found = survey([channel(mode="Pipe")], objects)
    before = os.umask(0o077)
    try:
        folders = Pipes(found, objects, tmp_path / "pipes", lambda error: None).folders()
    finally:
        os.umask(before)
    modes = {(path / "train_0").stat().st_mode & 0o777 for path in folders.values()}
    assert modes == {0o666}
    assert list(itertools.islice(folders, 2)) == list(HOSTS)
