"""The cost tree of a model: which parts of it can be placed on their own, in which order they run, what they cost.

A *part* is what one module itself holds and computes. Parts that must be on one rank form a *unit*: they share a
parameter, or one of them reads the other's parameters without calling it. Every module belongs to one part: its own if
it holds parameters, else that of the first part inside it, else that of its parent (of the module before it in an
nn.Sequential, where its input is).

Cost of a part, normalised by the whole model: a * memory + (1 - a) * compute, a = memory_weight; the cost function of
section 4.2 of "Amazon SageMaker Model Parallelism" (arXiv 2111.05972).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from .bonds import bonds
from .records import Trace
from .trace import empty_trace

# Bytes that training keeps for each byte of a parameter: itself, its gradient, two states of an Adam-like optimizer.
COPIES = 4


@dataclass
class Node:
    """A module in the tree. part: whether it has one of its own. children: in the order in which they run."""

    name: str
    part: bool
    children: list[Node] = field(default_factory=list)
    cost: float = 0.0

    def parts(self) -> list[str]:
        """Names of all parts in this subtree, in the order in which they run."""
        found = [self.name] if self.part else []
        for child in self.children:
            found.extend(child.parts())
        return found


@dataclass
class Tree:
    """root: all nodes hang from it. order: names of the parts as they run. unit: for each part, the first part of its
    unit. anchor: for each module, the part with which it runs. memory (bytes), compute (operations or seconds), cost
    (a fraction of the whole): of each part.
    """

    root: Node
    order: list[str]
    unit: dict[str, str]
    anchor: dict[str, str]
    memory: dict[str, float]
    compute: dict[str, float]
    cost: dict[str, float]


def build(module: nn.Module, trace: Trace | None, memory_weight: float, live_microbatches: int = 1) -> Tree:
    """The cost tree of module. trace: None places by parameters, as if all modules ran in the order of declaration.

    live_microbatches: how many micro-batches are in flight at once, so how often activations are counted.
    """
    records = trace or empty_trace(module)
    leaders = bonds(module, trace)
    holding = {name for name, record in records.modules.items() if record.parameter_bytes}
    holding.update(name for name, each in module.named_modules() if any(True for _ in each.parameters(recurse=False)))
    holding.update(leaders)
    if not holding:
        holding = {""}
    root = _grow(records, holding)
    order = root.parts()
    tree = Tree(root, order, _units(order, leaders), _anchors(module, root), {}, {}, {})
    _weigh(tree, records, trace is not None, live_microbatches)
    total_memory = sum(tree.memory.values()) or 1.0
    total_compute = sum(tree.compute.values())
    weight = memory_weight if total_compute else 1.0
    for name in order:
        compute = tree.compute[name] / total_compute if total_compute else 0.0
        tree.cost[name] = weight * tree.memory[name] / total_memory + (1 - weight) * compute
    _sum_costs(root, tree.cost)
    return tree


def _grow(records: Trace, holding: set[str]) -> Node:
    nodes = {name: Node(name, name in holding) for name in records.modules}
    for name in records.modules:
        if name:
            nodes[name.rpartition(".")[0]].children.append(nodes[name])
    _order(nodes[""], records)
    return nodes[""]


def _order(node: Node, records: Trace) -> int | None:
    """Sorts the children of node by their first call; returns the first call inside node."""
    keyed: list[tuple[int, Node]] = []
    latest = -1
    own = records.modules[node.name].first_call
    firsts = [own] if own is not None else []
    for child in node.children:
        first = _order(child, records)
        if first is not None:
            latest = first
            firsts.append(first)
        # One that never ran stays behind the sibling that was declared before it.
        keyed.append((latest, child))
    node.children = [child for _, child in sorted(keyed, key=lambda pair: pair[0])]
    return min(firsts) if firsts else None


def _units(order: list[str], leaders: dict[str, str]) -> dict[str, str]:
    first: dict[str, str] = {}
    unit: dict[str, str] = {}
    for name in order:
        group = leaders.get(name, name)
        unit[name] = first.setdefault(group, name)
    return unit


def _anchors(module: nn.Module, root: Node) -> dict[str, str]:
    modules = dict(module.named_modules())
    anchor: dict[str, str] = {}

    def settle(node: Node, inherited: str) -> None:
        inside = node.parts()
        anchor[node.name] = here = inside[0] if inside else inherited
        follow = isinstance(modules[node.name], nn.Sequential)
        before = here
        for child in node.children:
            settle(child, before if follow else here)
            before = anchor[child.name]

    settle(root, root.parts()[0])
    return anchor


def _weigh(tree: Tree, records: Trace, traced: bool, live_microbatches: int) -> None:
    tree.memory = dict.fromkeys(tree.order, 0.0)
    tree.compute = dict.fromkeys(tree.order, 0.0)
    for name, record in records.modules.items():
        part = tree.anchor[name]
        held = COPIES * record.parameter_bytes + record.buffer_bytes
        tree.memory[part] += held + live_microbatches * record.own_activation_bytes
        if not traced:
            tree.compute[part] += record.parameter_bytes
        elif records.times:
            # Clocks are coarser than the shortest calls: a difference of readings can be negative.
            tree.compute[part] += max(record.own_seconds or 0.0, 0.0)
        else:
            tree.compute[part] += record.own_operations


def _sum_costs(node: Node, cost: dict[str, float]) -> float:
    node.cost = cost.get(node.name, 0.0) + sum(_sum_costs(child, cost) for child in node.children)
    return node.cost
