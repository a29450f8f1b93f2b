"""From a cost tree to ranks: the published recursive algorithm, and a linear one that repairs where it wastes devices.

Recursive: algorithms 1 to 3 of "Amazon SageMaker Model Parallelism" (arXiv 2111.05972). The devices of a node are
divided among consecutive segments of its children: segments by dynamic programming (its equation 3), devices by the
D'Hondt method. A heavy module that cannot be divided can win several devices there and leave some without work.

Linear: consecutive segments of all parts in the order in which they run, at granularities from coarse to fine.
The best of all results is taken: most devices used, then least load on the fullest device, up to SLACK, then fewest
modules that lie on several devices, then fewest changes of device along the way.
"""

from __future__ import annotations

from .recursive import recursive
from .segments import segments
from .tree import Node, Tree

# A plan this much worse than the best one is still taken if it divides fewer modules: a divided module costs messages
# for each micro-batch, and its activations cannot be checkpointed.
SLACK = 0.1


def place(tree: Tree, devices: int) -> dict[str, int]:
    """A device for every part of tree; parts of one unit get the same."""
    plans = [recursive(tree, devices)]
    share = sum(tree.cost.values()) / devices
    for limit in [*(share / 2**level for level in range(8)), -1.0]:
        plan = _linear(tree, devices, limit)
        if plan not in plans:
            plans.append(plan)
    used = max(len(set(plan.values())) for plan in plans)
    plans = [plan for plan in plans if len(set(plan.values())) == used]
    least = min(fullest(tree, plan) for plan in plans)
    close = [plan for plan in plans if fullest(tree, plan) <= least * (1 + SLACK)]
    return min(close, key=lambda plan: (divided(tree.root, plan), changes(tree, plan), fullest(tree, plan)))


def fullest(tree: Tree, plan: dict[str, int]) -> float:
    """Cost on the device with the most."""
    loads: dict[int, float] = {}
    for part, device in plan.items():
        loads[device] = loads.get(device, 0.0) + tree.cost[part]
    return max(loads.values())


def divided(node: Node, plan: dict[str, int]) -> int:
    """How many modules of the subtree have parts on several devices."""
    if len({plan[part] for part in node.parts()}) < 2:
        return 0
    return 1 + sum(divided(child, plan) for child in node.children)


def changes(tree: Tree, plan: dict[str, int]) -> int:
    """How often the device changes from a part to the next, in the order in which they run."""
    return sum(plan[one] != plan[other] for one, other in zip(tree.order, tree.order[1:]))


def _linear(tree: Tree, devices: int, limit: float) -> dict[str, int]:
    """Segments of what the tree falls into when nodes that cost more than limit are taken apart."""
    pieces: list[list[str]] = []

    def take_apart(node: Node) -> None:
        if node.cost <= limit or not node.children:
            pieces.append(node.parts())
            return
        if node.part:
            pieces.append([node.name])
        for child in node.children:
            take_apart(child)

    take_apart(tree.root)
    atoms = _merged(tree, [piece for piece in pieces if piece])
    costs = [sum(tree.cost[part] for part in atom) for atom in atoms]
    plan: dict[str, int] = {}
    start = 0
    for device, end in enumerate(segments(costs, min(devices, len(atoms)))):
        for atom in atoms[start:end]:
            plan.update(dict.fromkeys(atom, device))
        start = end
    return {part: plan[part] for part in tree.order}


def _merged(tree: Tree, pieces: list[list[str]]) -> list[list[str]]:
    """Pieces with parts of one unit become one, at the place of the first."""
    above = list(range(len(pieces)))

    def top(index: int) -> int:
        while above[index] != index:
            index = above[index]
        return index

    home: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        for part in piece:
            first, second = sorted((top(home.setdefault(tree.unit[part], index)), top(index)))
            above[second] = first
    merged: dict[int, list[str]] = {}
    for index, piece in enumerate(pieces):
        merged.setdefault(top(index), []).extend(piece)
    return [merged[index] for index in sorted(merged)]
