"""What goes into step functions and over module calls between ranks: argument lists, and tensors of every kind."""

from __future__ import annotations

from typing import Any

import torch
from numerics import check_spread, distance, train_alone, train_on_ranks
from numerics_arguments import ARGUMENTS
from smp_jobs import run_ranks
from torch import nn


def test_tensors_changed_in_place_conjugated_and_sparse_are_those_of_one_process() -> None:
    found = train_on_ranks(ARGUMENTS, 2)
    check_spread(found, sum(one.numel() for one in ARGUMENTS.build().parameters()))
    assert max(distance(one, train_alone(ARGUMENTS)) for one in found) <= 1e-6


def signatures() -> list[Any]:
    import smdistributed.modelparallel.torch as smp

    smp.init({"microbatches": 2})

    @smp.step(non_split_inputs=["named", "whole"])
    def all_kinds(model: Any, first: Any, *rest: Any, flag: bool = True, whole: Any = None, **named: Any) -> Any:
        return [len(first), [len(one) for one in rest], flag, len(whole), {key: len(one) for key, one in named.items()}]

    @smp.step(input_split_axes={"rest": 1})
    def along(*rest: torch.Tensor, given: Any = 3) -> Any:
        return [list(one.shape) for one in rest], given

    @smp.step(input_split_axes={"other": 1})
    def by_name(x: Any, y: Any = None, z: Any = None, **named: torch.Tensor) -> Any:
        return len(x), y, len(z), {key: list(one.shape) for key, one in named.items()}

    four, three = torch.zeros(4), torch.zeros(3)
    return [
        all_kinds(nn.Linear(1, 1), four, four, [four, four], flag=False, whole=three, odd=three),
        along(torch.zeros(3, 4), torch.zeros(1, 2)),
        by_name(four, z=four, other=torch.zeros(3, 4), more=four),
    ]


def test_statement_19_every_kind_of_parameter_is_split_or_kept_by_its_name() -> None:
    """Arguments beyond the named ones go by the name of `*rest` and `**named`; what is left out keeps its default."""
    kinds, along, by_name = run_ranks(signatures, 1)[0].report
    assert kinds == [[2, 2], [[2, 2], [2, 2]], [False, False], [3, 3], {"odd": [3, 3]}]
    assert along == ([[[3, 3], [2, 2]], [[1, 1], [1, 1]]], [3, 3])
    assert by_name == ([2, 2], [None, None], [2, 2], {"other": [[3, 3], [2, 2]], "more": [[2, 2]]})
