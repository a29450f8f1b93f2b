"""Put what a job has left into S3, where the service puts it. `shoal run` and `shoal serve` both do it with this."""

from collections.abc import Callable
from pathlib import Path

from shoal.job.objects import Objects, joined


def upload(
    objects: Objects,
    folder: Path,
    uri: str,
    kms_key: str | None = None,
    still_wanted: Callable[[], None] = lambda: None,
) -> None:
    """Put every file of a folder below an S3 prefix, under its path in the folder; `still_wanted` may raise to give up.

    Links are left out: S3 has none.

    Raises:
        ShoalError: S3 does not take one.
    """
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        objects.upload(path, joined(uri, path.relative_to(folder).as_posix()), kms_key, still_wanted)
