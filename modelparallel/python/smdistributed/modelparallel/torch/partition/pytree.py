"""torch's trees of containers, as every release since 2.0 can take them apart."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_flatten


def leaves(tree: Any) -> list[Any]:
    """What is inside lists, tuples and dictionaries, in order. (torch has this function under a name since 2.2.)"""
    return tree_flatten(tree)[0]
