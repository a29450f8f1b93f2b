"""What the endpoint itself looks for in S3 before a job is taken.

The script, channels and checkpoints are `shoal run`'s own: it reads and writes them at the same endpoint.
"""

from shoal.errors import ShoalError
from shoal.job.local import SUBMIT_DIRECTORY, submit_directory
from shoal.job.objects import Objects
from shoal.job.spec import Request

SCHEME = "s3://"
_WRITTEN = (
    ("OutputDataConfig", "S3OutputPath"),
    ("CheckpointConfig", "S3Uri"),
    ("TensorBoardOutputConfig", "S3OutputPath"),
)


def missing(objects: Objects, request: Request) -> list[str]:
    """Return what a request names in S3 and is not there."""
    found = []
    for index, channel in enumerate(request.get("InputDataConfig", [])):
        place = f"InputDataConfig[{index}] ({channel['ChannelName']})"
        found += _missing(objects, place, channel["DataSource"]["S3DataSource"]["S3Uri"])
    source = _source(request)
    if source is not None:
        found += _missing(objects, f"HyperParameters.{SUBMIT_DIRECTORY}", source)
    for field, uri in _WRITTEN:
        try:
            if field in request:
                objects.require_bucket(request[field][uri])
        except ShoalError as error:
            found.append(f"{field}.{uri}: {error}")
    return found


def _source(request: Request) -> str | None:
    directory = submit_directory(request)
    return directory if directory is not None and directory.startswith(SCHEME) else None


def _missing(objects: Objects, place: str, uri: str) -> list[str]:
    try:
        return [] if objects.under(uri) else [f"{place}: no S3 objects found under {uri}"]
    except ShoalError as error:
        return [f"{place}: {error}"]
