"""What travels without a pickle comes back as it went, and what only looks alike is pickled (server/payload.py)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from smdistributed.modelparallel.torch.server.payload import Directory, pack, unpack
from torch import nn


class Pair(NamedTuple):
    args: Any
    kwargs: Any


A, B = torch.arange(3.0), torch.ones(2, 2)
PLAIN: list[Any] = [A, ((), {}), ((A,), {}), ((A, B), {})]
OTHERS: list[Any] = [
    (A,),
    [A],
    (A, {}),
    ((A,), B),
    ((A,), None),
    ((A, A), {}),
    ((A, 1), {}),
    ((A,), {"key": B}),
    ((A,), OrderedDict()),
    ([A], {}),
    Pair((A,), {}),
    ((A,), {}, ()),
    (tuple(torch.full((1,), float(i)) for i in range(70)), {}),
    b"t",
    b"a\x01",
    None,
    A.to_sparse(),
]


@pytest.fixture
def directory() -> Directory:
    model = nn.Linear(2, 2)
    return Directory(model, {"": 1})


def same(one: Any, other: Any) -> bool:
    """Equal, with equal types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one.to_dense(), other.to_dense())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("obj", [*PLAIN, *OTHERS], ids=repr)
def test_everything_comes_back_as_it_went(obj: Any, directory: Directory) -> None:
    """Whichever way it travels."""
    blob, tensors = pack(obj, directory, 0, "it")
    copies = [tensor.clone() for tensor in tensors]
    assert same(unpack(blob, copies, directory), obj)


@pytest.mark.parametrize("obj", PLAIN, ids=repr)
def test_plain_calls_have_no_pickle(obj: Any, directory: Directory) -> None:
    """What most calls send is named by two bytes."""
    assert len(pack(obj, directory, 0, "it")[0]) <= 2


def test_more_tensors_follow_those_of_the_object(directory: Directory) -> None:
    """Inputs that a module changed in place come behind its outputs, and are none of its arguments."""
    blob, tensors = pack(((A, B), {}), directory, 0, "it")
    assert same(unpack(blob, [*tensors, torch.zeros(1)], directory), ((A, B), {}))


def test_a_tensor_twice_is_one_tensor_there(directory: Directory) -> None:
    """In one process a change of the one is a change of the other."""
    blob, tensors = pack(((A, A), {}), directory, 0, "it")
    (one, other), _ = unpack(blob, [tensor.clone() for tensor in tensors], directory)
    assert len(tensors) == 1
    assert one is other


def test_a_parameter_of_the_receiver_travels_as_its_name(directory: Directory) -> None:
    """Alone, and as an argument."""
    weight = directory.parameter("weight")
    both: list[Any] = [weight, ((weight,), {})]
    for obj in both:
        blob, tensors = pack(obj, directory, 1, "it")
        assert not tensors
        found = unpack(blob, [], directory)
        assert (found if obj is weight else found[0][0]) is weight
