"""The script's folder, as the archive that every host gets: of a folder here, or of the one the SDK puts into S3."""

import contextlib
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO

from shoal.errors import ShoalError
from shoal.job import payload
from shoal.job.objects import Objects

_S3_SCHEME = "s3://"


def check(uri: str | None, objects: Objects) -> None:
    """Refuse code in S3 that is not there.

    Raises:
        ShoalError: there is none, or S3 cannot be asked.
    """
    if uri is not None and uri.startswith(_S3_SCHEME) and objects.one(uri) is None:
        raise ShoalError(f"HyperParameters.sagemaker_submit_directory: there is no {uri}: give --source FOLDER")


@contextlib.contextmanager
def archive(uri: str | None, objects: Objects) -> Iterator[IO[bytes] | None]:
    """Yield the code as a tar archive; None if the job brings none.

    Raises:
        ShoalError: it cannot be read, or is no archive.
    """
    if uri is None:
        yield None
        return
    with tempfile.TemporaryFile() as stream:
        if uri.startswith(_S3_SCHEME):
            try:
                with objects.open(uri) as source:
                    payload.repack_code_archive(source, stream)
            except (tarfile.TarError, EOFError, zlib.error) as error:
                raise ShoalError(f"{uri} is no archive of code: {error}") from error
        else:
            payload.write_code_archive(objects.local_path(uri), stream)
        yield stream
