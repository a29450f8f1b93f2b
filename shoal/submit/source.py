"""The folder with a job's script, packed as SageMaker's SDK packs it: a gzip'ed tar archive of what is in it."""

import gzip
from pathlib import Path
from typing import IO, cast

from shoal.errors import ShoalError
from shoal.job.payload import write_code_archive

ARCHIVE = "sourcedir.tar.gz"


def pack(folder: Path, stream: IO[bytes]) -> None:
    """Write the archive of a folder; the same folder makes the same bytes.

    Raises:
        ShoalError: something in it cannot be read.
    """
    try:
        with gzip.GzipFile(fileobj=stream, mode="wb", filename="", mtime=0) as packed:
            write_code_archive(folder, cast(IO[bytes], packed))
    except OSError as error:
        raise ShoalError(f"{folder}: cannot be packed: {error}") from error
