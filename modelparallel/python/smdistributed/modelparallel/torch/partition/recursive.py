"""Algorithms 1 to 3 of "Amazon SageMaker Model Parallelism" (arXiv 2111.05972): devices divided down the tree."""

from __future__ import annotations

from typing import Sequence

from .segments import segments
from .tree import Node, Tree


def recursive(tree: Tree, devices: int) -> dict[str, int]:
    """A device for every part of tree. A unit stands where its first part does, with the cost of all of them."""
    cost = dict.fromkeys(tree.order, 0.0)
    for part in tree.order:
        cost[tree.unit[part]] += tree.cost[part]
    of_leader: dict[str, int] = {}
    _assign(_leaders_only(tree.root, tree.unit, cost), range(devices), of_leader)
    return {part: of_leader[tree.unit[part]] for part in tree.order}


def allocate(costs: Sequence[float], most: Sequence[int], devices: int) -> list[int]:
    """Devices for each of costs by the D'Hondt method: the next goes to the greatest cost / (devices it has + 1).

    most: more than this is never given. Devices that nobody can take are not given at all.
    """
    given = [0] * len(costs)
    for _ in range(devices):
        open_ = [index for index in range(len(costs)) if given[index] < most[index]]
        if not open_:
            break
        winner = max(open_, key=lambda index: (costs[index] / (given[index] + 1), -index))
        given[winner] += 1
    return given


def _leaders_only(node: Node, unit: dict[str, str], cost: dict[str, float]) -> Node:
    """A copy of the tree with only the first parts of units; what a node itself holds becomes its first child."""
    pruned = (_leaders_only(child, unit, cost) for child in node.children)
    children = [child for child in pruned if child.part or child.children]
    leads = node.part and unit[node.name] == node.name
    if leads and children:
        children.insert(0, Node(node.name, True, [], cost[node.name]))
        leads = False
    total = (cost[node.name] if leads else 0.0) + sum(child.cost for child in children)
    return Node(node.name, leads, children, total)


def _assign(node: Node, held: Sequence[int], placed: dict[str, int]) -> None:
    """Algorithm 1: a node with one device gives it to all in it, one with several divides them among its children."""
    if node.part:
        placed[node.name] = held[0]
    elif len(held) == 1:
        for child in node.children:
            _assign(child, held, placed)
    else:
        _divide(node.children, held, placed)


def _divide(children: list[Node], held: Sequence[int], placed: dict[str, int]) -> None:
    """Algorithm 2: segments of children get devices; one that gets none goes to the first of all."""
    if len(children) == 1:
        _assign(children[0], held, placed)
        return
    ends = segments([child.cost for child in children], min(len(held), len(children)))
    groups = [children[start:end] for start, end in zip([0, *ends], ends)]
    costs = [sum(child.cost for child in group) for group in groups]
    most = [sum(len(child.parts()) for child in group) for group in groups]
    taken = 0
    for group, count in zip(groups, allocate(costs, most, len(held))):
        given = held[taken : taken + count] or held[:1]
        taken += count
        if len(group) > 1 and count > 1:
            _divide(group, given, placed)
        else:
            for child in group:
                _assign(child, given, placed)
