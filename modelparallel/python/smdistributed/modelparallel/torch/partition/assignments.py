"""The text of a decision for the log."""

from __future__ import annotations

from typing import Mapping


def format_assignments(assignments: Mapping[str, int]) -> str:
    """Text that starts with `Partition assignments:`; a line for each module that is not wholly where its parent is.

    assignments: what `decide` returned. A line holds the module's name ('main' for the model itself) and its rank; `*`
    stands for all that is inside.
    """
    children: dict[str, list[str]] = {}
    for name in assignments:
        if name:
            children.setdefault(name.rpartition(".")[0], []).append(name)
    lines: list[str] = []

    def whole(name: str) -> bool:
        return all(assignments[each] == assignments[name] and whole(each) for each in children.get(name, []))

    def show(name: str) -> None:
        inside = children.get(name, [])
        if inside and whole(name):
            lines.append(f"  {name or 'main'}.*: {assignments[name]}")
            return
        lines.append(f"  {name or 'main'}: {assignments[name]}")
        for each in inside:
            show(each)

    show("")
    return "\n".join(["Partition assignments:", *lines])
