"""What an image is called: the published tag grammar, in code.

`<torch>-<cpu|gpu>-py<xy>-[cu<xyz>-]<os>-sagemaker` in the repository `pytorch-training`; job specs, the SageMaker SDK
and users' scripts parse it. The short alias (without OS) is what SDKs ask for; the immutable tag ends in the hash of
what the image was built from.
"""

from dataclasses import dataclass

from shoal.image.versions import Row

REPOSITORY = "pytorch-training"


@dataclass(frozen=True)
class Names:
    """Every tag of one image, the most specific last."""

    short: str
    full: str
    immutable: str


def names(row: Row, content_hash: str) -> Names:
    """Return the tags of `row` built from inputs whose hash is `content_hash` (hex, at least 12 digits)."""
    short = f"{REPOSITORY}:{row.torch}-{row.device}-py{row.python.replace('.', '')}"
    full = f"{short}-{row.base}-sagemaker"
    return Names(short, full, f"{full}-{content_hash[:12]}")
