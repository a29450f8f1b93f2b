"""Which modules are gathered and freed together. Pure; looks at the module tree only."""

from __future__ import annotations

from typing import Container

from torch import nn


def units(module: nn.Module, kept: Container[int] = ()) -> list[nn.Module]:
    """The members of lists and sequences of modules, the layers of most models, inner ones first; not the root.

    kept: ids of parameters that stay whole. A member without parameters of its own to shard is none, nor is one that
    shares a parameter with the rest of the model: the two would be gathered at different times.
    """
    users: dict[int, int] = {}
    for child in module.modules():
        for parameter in child._parameters.values():
            if parameter is not None:
                users[id(parameter)] = users.get(id(parameter), 0) + 1
    found: list[nn.Module] = []
    for parent in reversed(list(module.modules())):
        if isinstance(parent, (nn.ModuleList, nn.Sequential)):
            found += [member for member in parent if member is not module and _stands_alone(member, users, kept)]
    return list(dict.fromkeys(found))


def _stands_alone(member: nn.Module, users: dict[int, int], kept: Container[int]) -> bool:
    inside: dict[int, int] = {}
    for child in member.modules():
        for parameter in child._parameters.values():
            if parameter is not None:
                inside[id(parameter)] = inside.get(id(parameter), 0) + 1
    return any(one not in kept for one in inside) and all(users[one] == count for one, count in inside.items())
