"""What torch and the frameworks do with a back end, as cases that give numbers to compare.

Each module here registers functions with :func:`case`. `workers/cases.py` runs all of a module's on one back end, in
one job; `test_wrappers.py` compares the numbers of two back ends, rank by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Numbers = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A function without arguments, run on every rank with the default group made."""

    name: str
    run: Callable[[], Numbers]
    ranks: int  # 0: any number


CASES: dict[str, Case] = {}


def case(ranks: int = 0) -> Callable[[Callable[[], Numbers]], Callable[[], Numbers]]:
    """Register a function under its name."""

    def register(function: Callable[[], Numbers]) -> Callable[[], Numbers]:
        CASES[function.__name__] = Case(function.__name__, function, ranks)
        return function

    return register


def numbers(values: Any) -> Numbers:
    """Every tensor and number in nested lists and dictionaries, in their order."""
    return [value.detach().clone().cpu() for value in _flatten(values)]


def _flatten(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values.to_dense() if values.is_sparse else values
    elif isinstance(values, dict):
        for key in sorted(values, key=str):
            yield from _flatten(values[key])
    elif isinstance(values, bool | int | float):
        yield torch.tensor(values, dtype=torch.float64)
    elif isinstance(values, Iterable) and not isinstance(values, str | bytes):
        for value in values:
            yield from _flatten(value)
