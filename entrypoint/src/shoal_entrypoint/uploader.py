"""Uploads files below a folder to S3 as soon as they are written: `uploader.py FOLDER BUCKET PREFIX [REGION]`.

A process of its own beside the job, because boto3 costs 20 MB and 0.1 s of whoever imports it. It ends when its stdin
ends, after a last look. What cannot be uploaded is said on stderr and is no reason to fail the job.

inotify(7) through ctypes: the standard library has none, and asking all files again and again costs more and sees less.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import struct
import sys
import threading
from typing import Callable, Iterable

_CLOSE_WRITE, _MOVED_TO, _CREATE, _ONLYDIR = 0x8, 0x80, 0x100, 0x01000000
_OVERFLOW, _ISDIR = 0x4000, 0x40000000
_HEAD = struct.Struct("iIII")


class Watch:
    """The files below `root` that were closed after writing, or moved there."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._folders: dict[int, str] = {}

    def add(self, folder: str) -> list[str]:
        """Watch a folder; what is in it already counts as written: it was made before anybody looked."""
        mask = _CLOSE_WRITE | _MOVED_TO | _CREATE | _ONLYDIR
        number = self._libc.inotify_add_watch(self.fd, os.fsencode(folder), mask)
        if number < 0:
            error = ctypes.get_errno()
            say(f"{folder}: cannot be watched: {os.strerror(error)} (fs.inotify.max_user_watches?)")
            return []
        self._folders[number] = folder
        written: list[str] = []
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return []  # gone again
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                written += self.add(entry.path)
            elif entry.is_file(follow_symlinks=False):
                written.append(entry.path)
        return written

    def written(self) -> list[str]:
        """What was written since the last call."""
        paths: list[str] = []
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return paths
            offset = 0
            while offset < len(data):
                number, mask, _, length = _HEAD.unpack_from(data, offset)
                name = data[offset + _HEAD.size : offset + _HEAD.size + length].rstrip(b"\0")
                offset += _HEAD.size + length
                if mask & _OVERFLOW:
                    paths += self.add(self.root)
                elif number in self._folders:
                    path = os.path.join(self._folders[number], os.fsdecode(name))
                    if mask & _ISDIR:
                        paths += self.add(path)
                    elif mask & (_CLOSE_WRITE | _MOVED_TO):
                        paths.append(path)


class Queue:
    """Uploads one file after the other; a file that is written again while it waits is uploaded once."""

    def __init__(self, upload: Callable[[str], None]) -> None:
        self._upload = upload
        self._paths: dict[str, None] = {}
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def put(self, paths: Iterable[str]) -> None:
        """Upload these."""
        with self._changed:
            self._paths.update(dict.fromkeys(paths))
            self._changed.notify()

    def close(self) -> None:
        """Wait until everything is uploaded."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._paths) or self._closed)
                if not self._paths:
                    return
                path = next(iter(self._paths))
                del self._paths[path]
            try:
                self._upload(path)
            except FileNotFoundError:
                pass  # deleted meanwhile
            except Exception as error:
                say(f"{path}: cannot be uploaded: {error}")


def say(text: str) -> None:
    """To the job's log."""
    print(f"train: intermediate output: {text}", file=sys.stderr, flush=True)


def main(folder: str, bucket: str, prefix: str, region: str = "") -> None:
    """Until stdin ends, and what was written by then is uploaded."""
    # Checksums in trailers are more than stores other than Amazon's always understand.
    os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    import boto3

    client = boto3.client("s3", region_name=region or None, endpoint_url=os.environ.get("S3_ENDPOINT_URL"))
    watch = Watch(folder)
    queue = Queue(lambda path: client.upload_file(path, bucket, f"{prefix}/{os.path.relpath(path, folder)}"))
    try:
        queue.put(watch.add(folder))
        with selectors.DefaultSelector() as selector:
            selector.register(watch.fd, selectors.EVENT_READ)
            selector.register(sys.stdin, selectors.EVENT_READ)
            ended = False
            while not ended:
                ended = any(key.fileobj is sys.stdin for key, _ in selector.select())
                queue.put(watch.written())
    finally:
        queue.close()  # its thread would keep this process, and the job, for ever


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as problem:
        say(f"cannot be uploaded any more: {problem}")
