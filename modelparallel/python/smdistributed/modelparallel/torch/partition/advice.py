"""What a person should know about a placement: sentences, each with what to do about it."""

from __future__ import annotations

from typing import Mapping

from torch import nn

from .records import Trace
from .tree import Tree

# Fullest device over the mean: what is worth a sentence.
UNEVEN = 1.25


def sequential_lists(module: nn.Module, trace: Trace) -> list[str]:
    """Names of nn.ModuleLists whose modules run one after another, each on the output of the one before (C12)."""
    found = []
    for name, each in module.named_modules():
        if isinstance(each, nn.ModuleList) and len(each) > 1:
            prefix = f"{name}." if name else ""
            names = [prefix + key for key, _ in each.named_children()]
            if all(pair in trace.feeds for pair in zip(names, names[1:])):
                found.append(name)
    return found


def slow_lists(module: nn.Module, trace: Trace, ranks: Mapping[str, int]) -> dict[str, list[int]]:
    """Those of sequential_lists that lie on several ranks, with the rank of each of their modules."""
    found = {}
    for name in sequential_lists(module, trace):
        prefix = f"{name}." if name else ""
        held = [ranks[prefix + key] for key, _ in module.get_submodule(name).named_children()]
        if len(set(held)) > 1:
            found[name] = held
    return found


def advice(module: nn.Module, trace: Trace | None, tree: Tree, ranks: Mapping[str, int], devices: int) -> list[str]:
    """All sentences about a placement."""
    sentences = [
        f"{name!r} is an nn.ModuleList whose modules run one after another on {len(set(held))} ranks: each result "
        "goes back to the module around it first; make it an nn.Sequential and it goes on directly"
        for name, held in (slow_lists(module, trace, ranks) if trace else {}).items()
    ]
    loads = [0.0] * devices
    for part in tree.order:
        loads[ranks[part]] += tree.cost[part]
    idle = [rank for rank, load in enumerate(loads) if load == 0.0]
    if idle:
        units = len(set(tree.unit.values()))
        sentences.append(
            f"rank(s) {', '.join(map(str, idle))} have nothing to do: the model has {units} part(s) that can be placed "
            f"alone; use at most as many partitions, or divide its largest modules"
        )
    elif devices > 1 and max(loads) * devices > UNEVEN * sum(loads):
        fullest = loads.index(max(loads))
        members: dict[str, float] = {}
        for part in tree.order:
            if ranks[part] == fullest:
                members[tree.unit[part]] = members.get(tree.unit[part], 0.0) + tree.cost[part]
        heaviest = max(members, key=lambda unit: members[unit])
        sentences.append(
            f"rank {fullest} has {max(loads):.0%} of the cost where an even share is {1 / devices:.0%}, and "
            f"{members[heaviest]:.0%} is {heaviest or 'the model itself'!r}: a module is divided only between modules "
            "that it calls"
        )
    if trace:
        unused = [name for name, each in _holding(module) if not trace.called(name) and _unused(name, trace)]
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            sentences.append(
                f"never ran in the trace: {', '.join(map(repr, unused[:3]))}{more}; if they run later, they run on the "
                "rank that the table shows"
            )
    return sentences


def _holding(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, each) for name, each in module.named_modules() if any(True for _ in each.parameters(recurse=False))]


def _unused(name: str, trace: Trace) -> bool:
    return all(owner != name for _, owner in trace.uses)
