"""Which tests an image has to pass: those of every kind of image that it is.

As images are made `FROM` one another, so are their tests inherited: an image passes the tests of its own kinds and of
all that these are made from. A kind is a folder of by_image/.
"""

import re
from collections.abc import Mapping

from shoal.image.versions import Row

# Each kind and the one that it is made from.
PARENTS: Mapping[str, str | None] = {
    "os": None,
    "debian": "os",
    "ubuntu": "os",
    "runtime": "os",
    "cpu": "runtime",
    "gpu": "runtime",
    "ec2": "runtime",
    "sagemaker": "runtime",
}


def kinds(row: Row, flavour: str) -> list[str]:
    """Return the kinds of the image of `row` in a flavour, a parent always before its children."""
    family = re.sub(r"[\d.]+$", "", row.base)  # debian12 -> debian
    found = {ancestor for kind in (family, row.device, flavour) for ancestor in _line(kind)}
    return [kind for kind in PARENTS if kind in found]


def _line(kind: str) -> list[str]:
    parent = PARENTS[kind]
    return [kind] if parent is None else [*_line(parent), kind]
