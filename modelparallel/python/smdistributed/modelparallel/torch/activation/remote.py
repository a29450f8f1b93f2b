"""Checkpointed groups on other ranks: a group has a name, from which the rank that owns its layers can make it.

The name of a group is that of its Sequential with the range of layers, or that of its module, and says whether random
numbers are preserved: "encoder.layers[2:4]!rng". Any rank may ask for any group at any time, nothing is agreed ahead.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from ..server.remote import NAME, OWNER
from .group import Group

_NAME = re.compile(r"(?P<module>.*?)(\[(?P<start>\d+):(?P<stop>\d+)\])?!(?P<rng>rng|norng)")


def name_of(module: str, layers: tuple[int, int] | None, preserve_rng_state: bool) -> str:
    """The name of the group that covers a module, or layers start to stop of a Sequential."""
    chosen = f"[{layers[0]}:{layers[1]}]" if layers else ""
    return f"{module}{chosen}!{'rng' if preserve_rng_state else 'norng'}"


def resolve(root: nn.Module, name: str) -> Group | None:
    """The group that has this name in the model `root`; None if it is not the name of a group."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    module = root.get_submodule(found["module"])
    layers = [module]
    if isinstance(module, nn.Sequential) and found["start"]:
        layers = list(module)[int(found["start"]) : int(found["stop"])]
    return Group(layers, found["rng"] == "rng")


def qualified_name(model: Any, module: nn.Module) -> str | None:
    """The name of a module in the DistributedModel `model`; None for one that is not a part of it."""
    name: str | None = module.__dict__.get(NAME)
    return name if name is not None and model.module.get_submodule(name) is module else None


def place(group: nn.Module, name: str, owner: int) -> None:
    """Say which pp_rank runs the group, and by what name that rank is asked for it."""
    group.__dict__[OWNER], group.__dict__[NAME] = owner, name
