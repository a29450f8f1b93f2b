"""Calls that hypothesis makes up, on ranks that stay, against one process that knows the definition.

SMDDP_EXAMPLES sets how many calls each arrangement of ranks gets; above the default they are other ones each time.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operations import ARITHMETIC, BITWISE, FLOATS, INTEGERS, LAYOUTS, MOVING, OTHERS, REDUCING, Call, outputs
from rank_jobs import INSIDE, WORKERS, clean_environment, free_port, place

DEFAULT_EXAMPLES = 150
EXAMPLES = int(os.environ.get("SMDDP_EXAMPLES", DEFAULT_EXAMPLES))
# Small, so that small tensors go through every algorithm.
SMALL = {"SMDDP_SHM_CHUNK_BYTES": "4096", "SMDDP_ONE_SHOT_BYTES": "256", "SMDDP_NET_BLOCK_BYTES": "4096"}


DELEGATED = ("gather", "scatter", "all_to_all_single")
# gloo takes the memory of these for their elements, whatever their strides: we refuse other layouts.
IN_ORDER = ("scatter", "all_to_all_single")


class Ranks:
    """Processes of `workers/service.py`."""

    def __init__(self, hosts: str, inside: str) -> None:
        self.size = len(hosts)
        common = clean_environment() | SMALL | {"WORLD_SIZE": str(self.size)} | INSIDE[inside]
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        command = [sys.executable, str(WORKERS / "service.py")]
        self.processes = [
            subprocess.Popen(
                command,
                env=common | place(rank, hosts) | {"SMDDP_HOST_ID": hosts[rank]},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for rank in range(self.size)
        ]

    def run(self, call: Call) -> list[Any]:
        """Each rank's tensors, or its error in words."""
        for process in self.processes:
            assert process.stdin is not None
            pickle.dump(call, process.stdin)
            process.stdin.flush()
        return [pickle.load(process.stdout) for process in self.processes if process.stdout is not None]

    def stop(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


ARRANGEMENTS = [
    *("aa slots", "aaa slots", "abb slots", "aabb slots"),
    *("aa mailboxes", "aaa mailboxes", "aabb mailboxes"),
    *("aa direct", "aaa direct", "aabb direct"),
]


@pytest.fixture(scope="module", params=ARRANGEMENTS)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Hosts as in `place`, and how messages go inside a host."""
    found = Ranks(*request.param.split())
    yield found
    found.stop()


def reductions_of(name: str) -> tuple[str, ...]:
    """gloo, which has the bitwise ones, has none for reduce-scatter, and its reduce takes contiguous tensors only."""
    return ARITHMETIC + (BITWISE if name.startswith("all_reduce") else ())


@st.composite
def calls(draw: st.DrawFn) -> Call:
    name = draw(st.sampled_from(REDUCING + MOVING))
    reduction = draw(st.sampled_from(reductions_of(name))) if name in REDUCING else "SUM"
    if name in DELEGATED or reduction in BITWISE:
        # gloo carries these out, and has no 16-bit integers.
        integers = [dtype for dtype in INTEGERS if dtype != "int16"]
        types: Sequence[str] = integers if reduction in BITWISE else [*FLOATS, *integers]
    else:
        types = FLOATS + INTEGERS + (OTHERS if name in MOVING else ())
    dtype = draw(st.sampled_from(types))
    small = st.lists(st.integers(0, 6), max_size=4)
    # Beyond a slot of shared memory, with a remainder for every way to cut it.
    large = st.lists(st.integers(500, 2500), min_size=1, max_size=1)
    shape = draw(st.one_of(small, small, large))
    return Call(
        name,
        dtype,
        tuple(shape),
        draw(st.sampled_from(("contiguous", "offset") if name in IN_ORDER else LAYOUTS)),
        reduction,
        draw(st.integers(0, 3)),
        draw(st.booleans()),
        draw(st.integers(0, 1 << 20)),
    )


def same(found: torch.Tensor, expected: torch.Tensor, call: Call) -> bool:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if call.reduction == "AVG" and found.is_floating_point():
        # A third is not exact: dividing and multiplying by 1/n may differ in the last bit.
        step = torch.finfo(found.dtype).eps
        return torch.allclose(found.double(), expected.double(), rtol=step, atol=step)
    return torch.equal(found, expected)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == DEFAULT_EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(call=calls())
def test_every_rank_gets_what_the_definition_says(ranks: Ranks, call: Call) -> None:
    call = Call(**{**vars(call), "root": call.root % ranks.size})
    answers = ranks.run(call)
    for rank, found in enumerate(answers):
        expected = outputs(call, rank, ranks.size)
        assert not isinstance(found, str), f"rank {rank}: {found}"
        assert len(found) == len(expected)
        for mine, right in zip(found, expected, strict=True):
            assert same(mine, right, call), f"rank {rank}: {mine} instead of {right}"
    if call.name == "all_reduce":
        for found in answers[1:]:
            assert torch.equal(found[0], answers[0][0]), "ranks differ"


def test_a_layout_that_gloo_would_misread_is_refused(ranks: Ranks) -> None:
    for name in IN_ORDER:
        for answer in ranks.run(Call(name, "float32", (500,), "strided")):
            assert str(answer).startswith(f"ValueError: smddp: {name} takes contiguous tensors"), answer
    # Nothing was begun: the group goes on.
    call = Call("scatter", "float32", (500,))
    for rank, found in enumerate(ranks.run(call)):
        assert torch.equal(found[0], outputs(call, rank, ranks.size)[0])
