"""The objects of moto's S3 as files, so that they survive a restart: moto itself has them in memory alone.

Of each bucket the newest version of each object is kept, with its metadata. Buckets' settings (policies, versioning,
tags, ...) are not.
"""

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from moto.s3.models import FakeDeleteMarker, s3_backends

from shoal.job.artifacts import finished_or_absent
from shoal.serve.log_events import ACCOUNT

_BUCKET = "bucket.json"


class S3Objects:
    """Buckets are folders; an object is a file of its content, and beside it a file of its key and metadata."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._backend = s3_backends[ACCOUNT]["aws"]
        self._kept: dict[str, dict[str, Any]] = {}  # bucket -> key -> moto's object as it was when it was kept

    def restore(self) -> None:
        """Give moto what the files have."""
        for description in sorted(self._folder.glob(f"*/{_BUCKET}")):
            bucket = description.parent.name
            self._backend.create_bucket(bucket, json.loads(description.read_text())["region"])
            kept = self._kept[bucket] = {}
            for file in sorted(description.parent.glob("*.object.json")):
                about = json.loads(file.read_text())
                value = _content(file).read_bytes()
                stored = self._backend.put_object(bucket, about["key"], value, etag=about["etag"])
                stored.set_metadata(about["metadata"], replace=True)
                kept[about["key"]] = stored

    def keep(self) -> None:
        """Write what has changed in moto since the last call.

        Raises:
            OSError: it cannot be written.
        """
        with self._lock:
            buckets = dict(self._backend.buckets)
            for name in self._kept.keys() - buckets.keys():
                self._forget_bucket(name)
            for name, bucket in buckets.items():
                self._keep_bucket(name, bucket)

    def _keep_bucket(self, name: str, bucket: Any) -> None:
        folder = self._folder / name
        if name not in self._kept:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / _BUCKET, json.dumps({"region": bucket.region_name}).encode())
            self._kept[name] = {}
        kept = self._kept[name]
        newest = {key: bucket.keys.get(key) for key in list(bucket.keys)}
        there = {key: item for key, item in newest.items() if item is not None and type(item) is not FakeDeleteMarker}
        for key in kept.keys() - there.keys():
            _forget(folder, key)
            del kept[key]
        for key, item in there.items():
            if kept.get(key) is not item:
                self._keep_object(folder, key, item)
                kept[key] = item

    def _keep_object(self, folder: Path, key: str, item: Any) -> None:
        about = {"key": key, "etag": item.etag.strip('"'), "metadata": dict(item.metadata)}
        file = _about(folder, key)
        # The content first: a description without it would be an object that is not there.
        _write(_content(file), item.value)
        _write(file, json.dumps(about).encode())

    def _forget_bucket(self, name: str) -> None:
        for key in self._kept.pop(name):
            _forget(self._folder / name, key)
        (self._folder / name / _BUCKET).unlink(missing_ok=True)


def _forget(folder: Path, key: str) -> None:
    file = _about(folder, key)
    file.unlink(missing_ok=True)
    _content(file).unlink(missing_ok=True)


def _about(folder: Path, key: str) -> Path:
    return folder / f"{hashlib.sha256(os.fsencode(key)).hexdigest()}.object.json"


def _content(about: Path) -> Path:
    return about.with_suffix("").with_suffix(".content")


def _write(path: Path, data: bytes) -> None:
    with finished_or_absent(path) as file:
        file.write(data)
