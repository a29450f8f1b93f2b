"""Files of this machine and objects of S3, by their URI: list, read, fetch, write. The only file that talks to S3.

S3 is whatever answers at the endpoint: AWS, or any server that speaks its API (`--endpoint-url`, `AWS_ENDPOINT_URL`).
"""

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote, unquote

from shoal.errors import ShoalError
from shoal.job.artifacts import UNFINISHED, finished_or_absent

_S3_SCHEME = "s3://"
_NOT_FOUND, _FORBIDDEN = 404, 403
_REGION = "us-east-1"  # where none is configured: it names no place to a server that is not AWS


class _Unwanted(Exception):  # noqa: N818 - the user's wish, not an error
    """What is fetched is not wanted any more."""


@dataclass(frozen=True)
class Entry:
    """One file or object: its path below what was listed, where it is, and how many bytes it has."""

    path: str
    uri: str
    size: int


class Objects:
    """Files and objects. `local_path` turns a `file://` URI into a path."""

    def __init__(self, local_path: Callable[[str], Path], endpoint_url: str | None = None) -> None:
        self.local_path, self._endpoint_url = local_path, endpoint_url

    def under(self, uri: str) -> list[Entry]:
        """Return what is below a folder, or begins with an S3 prefix, in the order of the paths; may be nothing.

        A single file, or object of exactly that key, is one entry with its own name.

        Raises:
            ShoalError: S3 cannot be asked, or a folder not be read.
        """
        found = self._keys(uri) if uri.startswith(_S3_SCHEME) else self._files(uri)
        return sorted(found, key=lambda entry: entry.path)

    def one(self, uri: str) -> Entry | None:
        """Return the file or object of exactly that name; None if there is none."""
        with _told(uri):
            if not uri.startswith(_S3_SCHEME):
                path = self.local_path(uri)
                return Entry(path.name, path.as_uri(), path.stat().st_size) if path.is_file() else None
            bucket, key = _split(uri)
            try:
                size = self._client.head_object(Bucket=bucket, Key=key)["ContentLength"]
            except self._client.exceptions.ClientError as error:
                if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
                    return None
                raise
            return Entry(key.rpartition("/")[2], uri, size)

    def read(self, uri: str) -> bytes:
        """Return the whole content of a file or object."""
        with self.open(uri) as stream:
            return stream.read()

    @contextlib.contextmanager
    def open(self, uri: str) -> Iterator[IO[bytes]]:
        """Open a file or object to be read from its beginning to its end.

        Raises:
            ShoalError: there is none, or it cannot be read.
        """
        with _told(uri):
            if uri.startswith(_S3_SCHEME):
                bucket, key = _split(uri)
                body = self._client.get_object(Bucket=bucket, Key=key)["Body"]
                with contextlib.closing(body):
                    yield cast("IO[bytes]", body)
            else:
                with self.local_path(uri).open("rb") as file:
                    yield file

    def fetch(self, entry: Entry, target: Path, still_wanted: Callable[[], bool] = lambda: True) -> None:
        """Put an entry's content at `target`, whose folder is there: by a hard link where that is possible.

        Gives up, and leaves nothing, when it is no longer wanted.
        """

        def go_on(_bytes: int) -> None:
            if not still_wanted():
                raise _Unwanted

        with _told(entry.uri):
            if entry.uri.startswith(_S3_SCHEME):
                bucket, key = _split(entry.uri)
                with contextlib.suppress(_Unwanted):
                    self._client.download_file(bucket, key, str(target), Callback=go_on)
                return
            source = self.local_path(entry.uri)
            try:
                os.link(source.resolve(), target)  # hosts see it read-only
            except OSError:
                shutil.copyfile(source, target)

    def write(self, uri: str, stream: IO[bytes]) -> None:
        """Write a file or object; it appears when it is whole."""
        with _told(uri, "written"):
            if uri.startswith(_S3_SCHEME):
                bucket, key = _split(uri)
                with tempfile.TemporaryFile() as whole:  # so that half a file is never uploaded
                    shutil.copyfileobj(stream, whole)
                    whole.seek(0)
                    self._client.upload_fileobj(whole, bucket, key)
                return
            path = self.local_path(uri)
            path.parent.mkdir(parents=True, exist_ok=True)
            with finished_or_absent(path) as file:
                shutil.copyfileobj(stream, file)

    def upload(
        self, file: Path, uri: str, kms_key: str | None = None, still_wanted: Callable[[], None] = lambda: None
    ) -> None:
        """Write a file of this machine to an object of S3; `still_wanted` may raise to give up.

        Raises:
            ShoalError: S3 does not take it.
        """
        bucket, key = _split(uri)
        extra = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key} if kms_key else {}
        with _told(uri, "written"):
            try:
                self._client.upload_file(file, bucket, key, ExtraArgs=extra, Callback=lambda _bytes: still_wanted())
            except Exception:
                still_wanted()  # what it raised on the way comes out as an error of the connection
                raise

    def require_bucket(self, uri: str) -> None:
        """Refuse a bucket that is not there, or an S3 that cannot be asked.

        A bucket that may not be looked at is let pass: one may be allowed to write to it all the same.
        """
        bucket, _key = _split(uri)
        with _told(uri, "written"):
            try:
                self._client.head_bucket(Bucket=bucket)
            except self._client.exceptions.ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status == _NOT_FOUND:
                    raise ShoalError(f"{uri} cannot be written: there is no bucket {bucket}") from error
                if status != _FORBIDDEN:
                    raise

    def _files(self, uri: str) -> Iterator[Entry]:
        root = self.local_path(uri)
        with _told(uri):
            if root.is_file():
                yield Entry(root.name, root.as_uri(), root.stat().st_size)
                return
            for folder, folders, names in os.walk(root, followlinks=False):
                folders.sort()
                for name in names:
                    if name.endswith(UNFINISHED):  # by another job, or one that was killed
                        continue
                    path = Path(folder, name)
                    if path.is_file():  # also a link to one
                        yield Entry(str(path.relative_to(root)), path.as_uri(), path.stat().st_size)

    def _keys(self, uri: str) -> Iterator[Entry]:
        bucket, prefix = _split(uri)
        with _told(uri):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            for page in pages:
                for item in page.get("Contents", []):
                    key = item["Key"]
                    if not key.endswith("/"):  # a folder, as consoles mark one
                        yield Entry(_below(key, prefix), f"{_S3_SCHEME}{bucket}/{key}", item["Size"])

    @functools.cached_property
    def _client(self) -> Any:
        # Imported here: they take a third of a second, and most jobs are of this machine alone.
        import boto3
        from botocore.config import Config

        elsewhere = self._endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        config = Config(
            # A server under one name has no names for its buckets.
            s3={"addressing_style": "path" if elsewhere else "auto"},
            connect_timeout=10,
            retries={"mode": "standard", "total_max_attempts": 3},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        with _told(self._endpoint_url or "S3"):
            session = boto3.session.Session()
            region = session.region_name or _REGION
            return session.client("s3", region_name=region, endpoint_url=self._endpoint_url, config=config)


@contextlib.contextmanager
def _told(uri: str, verb: str = "read") -> Iterator[None]:
    """Turn what may go wrong with a file or with S3 into one line."""
    try:
        yield
    except OSError as error:
        raise ShoalError(f"{unquote(uri)} cannot be {verb}: {error.strerror or error}") from error
    except Exception as error:
        if not _is_s3_error(error):
            raise
        words = " ".join(str(error).split())
        hint = ": set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if "credentials" in words else ""
        raise ShoalError(f"{uri} cannot be {verb}: {words}{hint}") from error


def _is_s3_error(error: Exception) -> bool:
    """Whether an exception is of boto3 or of what it is made of; asked so that nobody imports them for files alone."""
    return type(error).__module__.partition(".")[0] in ("botocore", "boto3", "s3transfer", "urllib3") or (
        isinstance(error, ValueError) and "endpoint" in str(error)
    )


def joined(uri: str, path: str) -> str:
    """Return the URI of what is at `path` below a folder."""
    return f"{uri.rstrip('/')}/{path if uri.startswith(_S3_SCHEME) else quote(path, errors='surrogateescape')}"


def _split(uri: str) -> tuple[str, str]:
    bucket, _slash, key = uri.removeprefix(_S3_SCHEME).partition("/")
    return bucket, key


def _below(key: str, prefix: str) -> str:
    """Return the path of an object: what its key has beyond the prefix, from the last whole name of the prefix on."""
    rest = key[len(prefix) :]
    if rest.startswith("/"):
        return rest.lstrip("/")
    return prefix.rpartition("/")[2] + rest
