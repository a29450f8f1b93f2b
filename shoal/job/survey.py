"""What there is to bring to the hosts, before anything is brought: the objects of each channel that is not mounted.

Whatever is wrong with them is told here, so that a job whose data is not there is not begun.
"""

import json
import os
import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from shoal.errors import ShoalError
from shoal.job.channels import Channel
from shoal.job.objects import Entry, Objects
from shoal.job.shape import show

_AT_ONCE = 16
_LONGEST_NAME = 255  # of file systems; a key of S3 may have 1024 bytes between two slashes
_REFERENCE = "-ref"  # an attribute of this ending holds a URI: its object is sent, not the URI


@dataclass(frozen=True)
class Piece:
    """What is sent as one: an object, or a value that an augmented manifest holds itself."""

    entry: Entry | None = None
    literal: bytes = b""


Record = tuple[Piece, ...]  # what stays together when a channel is shuffled or divided


@dataclass(frozen=True)
class Survey:
    """A channel and everything in it, in the order of the keys or of its manifest."""

    channel: Channel
    records: tuple[Record, ...]

    def of_host(self, host: str, epoch: int = 0) -> list[Record]:
        """Return what a host gets in an epoch: every n-th record where the channel is sharded over n hosts."""
        records = list(self.records)
        if self.channel.seed is not None:
            # Of all records, before they are divided: an object may be another host's in the next epoch.
            random.Random(f"{self.channel.seed} {epoch}").shuffle(records)
        if not self.channel.sharded:
            return records
        return records[self.channel.hosts.index(host) :: len(self.channel.hosts)]

    @property
    def size(self) -> int:
        """The bytes of all objects."""
        return sum(piece.entry.size for record in self.records for piece in record if piece.entry)


def survey(channels: Iterable[Channel], objects: Objects) -> tuple[Survey, ...]:
    """Look at every channel that has to be fetched, divided or fed.

    Raises:
        ShoalError: an object is not there or cannot be read; a manifest is none; a path leads out of its channel.
    """
    return tuple(Survey(each, tuple(_records(each, objects))) for each in channels if not each.is_mounted)


def _records(channel: Channel, objects: Objects) -> list[Record]:
    if channel.data_type == "AugmentedManifestFile":
        return _augmented(channel, objects)
    if channel.data_type == "ManifestFile":
        entries = _manifest(channel, objects)
    else:
        entries = objects.under(channel.uri)
        if not entries:
            raise ShoalError(f"channel {channel.name}: there is nothing at {channel.uri}")
    if channel.mode != "Pipe":
        _check_paths(channel, entries)
    return [(Piece(entry),) for entry in entries]


def _manifest(channel: Channel, objects: Objects) -> list[Entry]:
    """Return the objects a manifest names: `[{"prefix": "s3://bucket/folder/"}, "a", "b/c"]`."""
    items = _json(channel, objects.read(channel.uri), channel.uri)
    if not isinstance(items, list) or not items:
        raise ShoalError(f"{channel.uri}: {show(items)} is no manifest: a list of paths after a prefix is one")
    prefix: Any = ""
    if isinstance(items[0], dict):
        prefix, items = items[0].get("prefix"), items[1:]
    for item in items:
        if not isinstance(item, str) or not isinstance(prefix, str):
            raise ShoalError(f'{channel.uri}: {show(item)} is no path: write [{{"prefix": "s3://BUCKET/"}}, "PATH"]')
    if not items:
        raise ShoalError(f"channel {channel.name}: {channel.uri} has a prefix and no path after it")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(
            pool.map(lambda i: _one(channel, objects, prefix + i, i if prefix else PurePosixPath(i).name), items)
        )


def _augmented(channel: Channel, objects: Objects) -> list[Record]:
    """Return the lines of an augmented manifest: JSON objects, of each the attributes the channel asks for."""

    def record(numbered: tuple[int, bytes]) -> Record:
        where = f"{channel.uri} line {numbered[0]}"
        fields = _json(channel, numbered[1], where)
        if not isinstance(fields, dict):
            raise ShoalError(f"{where}: {show(fields)} is not an object")
        return tuple(_attribute(channel, objects, fields, name, where) for name in channel.attributes)

    lines = [pair for pair in enumerate(objects.read(channel.uri).splitlines(), 1) if pair[1].strip()]
    if not lines:
        raise ShoalError(f"channel {channel.name}: {channel.uri} is empty")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(record, lines))


def _attribute(channel: Channel, objects: Objects, fields: dict[str, Any], name: str, where: str) -> Piece:
    if name not in fields:
        raise ShoalError(f"{where}: there is no attribute {show(name)}: it has {', '.join(fields)}")
    value = fields[name]
    if name.endswith(_REFERENCE):
        if not isinstance(value, str):
            raise ShoalError(f"{where}: {name}: {show(value)} is not the URI of an object")
        return Piece(_one(channel, objects, value, PurePosixPath(value).name))
    return Piece(literal=(value if isinstance(value, str) else json.dumps(value)).encode())


def _one(channel: Channel, objects: Objects, uri: str, path: str) -> Entry:
    """Return the entry of exactly one object that a manifest names."""
    if not uri.startswith(("s3://", "file://")):
        raise ShoalError(f"{channel.uri}: {show(uri)} is no URI: s3:// or file:// must begin it, or the prefix")
    entry = objects.one(uri)
    if entry is None:
        raise ShoalError(f"{channel.uri}: there is no {uri}")
    return Entry(path, entry.uri, entry.size)


def _json(channel: Channel, text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShoalError(f"channel {channel.name}: {where} is not JSON: {' '.join(str(error).split())}") from error


def _check_paths(channel: Channel, entries: list[Entry]) -> None:
    """Refuse what cannot be laid out as files below one folder."""
    taken: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        parts = entry.path.split("/")
        if "" in parts or "." in parts or ".." in parts or "\0" in entry.path:
            raise ShoalError(f"channel {channel.name}: {entry.uri}: {show(entry.path)} is no path of a file")
        if any(len(os.fsencode(part)) > _LONGEST_NAME for part in parts):
            what = f"a file's name has {_LONGEST_NAME} bytes at most: use InputMode Pipe"
            raise ShoalError(f"channel {channel.name}: {entry.uri}: {what}")
        if entry.path in taken:
            raise ShoalError(f"channel {channel.name}: {show(entry.path)} is there twice")
        taken.add(entry.path)
        folders.update("/".join(parts[:i]) for i in range(1, len(parts)))
    if both := sorted(taken & folders):
        raise ShoalError(f"channel {channel.name}: {show(both[0])} is an object and a folder: a file cannot be both")
