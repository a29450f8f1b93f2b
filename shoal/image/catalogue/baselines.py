"""The sizes that AWS publishes for its own images (`published.size_mb` in versions.yaml), to set ours beside. Pure.

It is `image_size_baseline` in the build specifications of github.com/aws/deep-learning-containers: uncompressed, in
10^6 bytes; their own check fails an image that is more than 1.2 times as large.
"""

from dataclasses import dataclass

from packaging.version import Version

from shoal.image.versions import Versions


@dataclass(frozen=True)
class Baseline:
    """What the vendor expects its image to take."""

    mb: int
    of: str  # the torch version that the number was published for


def baseline(versions: Versions, torch: str, device: str, flavour: str = "sagemaker") -> Baseline | None:
    """Return the published size of the vendor's image of the same torch minor version.

    For a torch that is newer than all of theirs, that of their newest; `of` says which. None where nothing is
    published, and for flavours other than SageMaker's: versions.yaml has SageMaker's numbers.
    """
    published = {
        Version(row.torch): row.published.size_mb
        for row in versions.rows.values()
        if row.device == device and row.published is not None and row.published.size_mb is not None
    }
    if flavour != "sagemaker" or not published:
        return None
    wanted, newest = Version(torch), max(published)
    same = [version for version in published if version.release[:2] == wanted.release[:2]]
    of = max(same) if same else newest if wanted > newest else None
    return Baseline(published[of], str(of)) if of is not None else None
