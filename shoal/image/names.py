"""What an image is called: the published tag grammar, in code.

`<torch>-<cpu|gpu>-py<xy>-[cu<xyz>-]<os>-<sagemaker|ec2>` in the repository `pytorch-training`; job specs, the SageMaker
SDK and users' scripts parse it. The short alias (without OS) is what SDKs ask for; the immutable tag ends in the hash
of what the image was built from.
"""

from dataclasses import dataclass
from typing import get_args

from shoal.image.versions import Flavour, Versions

REPOSITORY = "pytorch-training"
FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)


@dataclass(frozen=True)
class Names:
    """Every tag of one image."""

    aliases: tuple[str, ...]  # the short forms that SDKs ask for; no other image has them
    full: str
    immutable: str

    @property
    def every(self) -> tuple[str, ...]:
        """All of them, the most specific last."""
        return (*self.aliases, self.full, self.immutable)


def names(versions: Versions, name: str, content_hash: str, flavour: Flavour = "sagemaker") -> Names:
    """Return the tags of row `name`'s image of `flavour`; `content_hash` (12 hex digits or more) is of its inputs.

    The short tag is SageMaker's; an image for EC2 adds its flavour to it.
    """
    suffix = "" if flavour == "sagemaker" else f"-{flavour}"
    aliases = tuple(f"{REPOSITORY}:{alias}{suffix}" for alias, row in versions.aliases.items() if row == name)
    full = f"{REPOSITORY}:{versions.row(name).stem}-{flavour}"
    return Names(aliases, full, f"{full}-{content_hash[:12]}")
