"""A library that sums wrongly, or breaks, must not come out of the benchmark as fast."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import collectives
import pytest
import torch
from harness.build import Cache
from harness.job import Command
from harness.layout import layout_named
from harness.measure import Effort
from harness.peers import FLOAT32_ROUNDOFF, Gloo, Place

WORKER = Path(__file__).parent / "workers" / "faulty_worker.py"
COUNT = 1000


class Faulty(Gloo):
    """gloo with a fault in its all-reduce."""

    title = "faulty"

    def __init__(self, fault: str) -> None:
        self.name = self.fault = fault

    def commands(self, place: Place) -> list[Command]:
        return [
            Command([*command.argv[:-2], str(WORKER), self.fault], command.env) for command in super().commands(place)
        ]


def say(text: str) -> None:
    print(text, file=sys.stderr)


def run_with(peers: list[Gloo], cache: Path, folder: Path, sizes: list[int], layout: str = "1x2") -> dict[str, object]:
    (place,) = layout_named(layout)
    request = collectives.Request([place], ["all_reduce"], sizes, list(peers), Effort(1, 0.01, 0), cache, {})
    run, stop = collectives.measure(request, place, "all_reduce", sizes, folder, say)
    assert stop is None
    return run


@pytest.mark.parametrize("fault", ["rounds", "forgets"])
def test_a_library_that_sums_wrongly_is_found_out(fault: str, cache: Path, tmp_path: Path) -> None:
    run = run_with([Gloo(), Faulty(fault)], cache, tmp_path, [4096])
    assert isinstance(run["wrong"], dict)
    assert list(run["wrong"]) == [fault]
    assert "are wrong" in run["wrong"][fault]
    assert isinstance(run["cells"], list)
    assert list(run["cells"][0]["median_seconds"]) == ["gloo"]
    assert collectives.exit_code([run]) == 1


def test_a_library_that_dies_costs_only_itself(cache: Path, tmp_path: Path) -> None:
    run = run_with([Faulty("dies"), Gloo()], cache, tmp_path, [4096, 65536])
    assert isinstance(run["failed"], dict)
    assert "ended with 7" in run["failed"]["dies"]
    assert isinstance(run["cells"], list)
    assert [list(cell["median_seconds"]) for cell in run["cells"]] == [["gloo"], ["gloo"]]
    assert collectives.exit_code([run]) == 0


@pytest.mark.usefixtures("_hosts")
def test_what_a_shaped_link_saved_up_while_ranks_met_is_not_counted(cache: Path, tmp_path: Path) -> None:
    run = run_with([Faulty("saves")], cache, tmp_path, [1 << 20], "2x1@1gbit")
    assert isinstance(run["cells"], list)
    assert run["cells"][0]["median_seconds"]["saves"] >= 0.03


class Payload:
    def __init__(self, cache: Path) -> None:
        self.library = ctypes.CDLL(str(Cache(cache).payload()))
        self.library.payload_check_sum.restype = ctypes.c_size_t
        self.library.payload_check_copy.restype = ctypes.c_size_t

    def values(self, rank: int, first: int = 0) -> torch.Tensor:
        tensor = torch.empty(COUNT)
        self.library.payload_fill(
            ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(first), ctypes.c_size_t(COUNT), rank
        )
        return tensor

    def wrong(self, tensor: torch.Tensor, ranks: int, first: int = 0) -> int:
        words = (ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(first), ctypes.c_size_t(COUNT), ranks)
        return int(self.library.payload_check_sum(*words, ctypes.c_double(FLOAT32_ROUNDOFF)))


@pytest.fixture
def payload(cache: Path) -> Payload:
    return Payload(cache)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_sums_in_any_order_are_right(payload: Payload, ranks: int) -> None:
    terms = [payload.values(rank, first=77) for rank in range(ranks)]
    forwards, backwards = torch.zeros(COUNT), torch.zeros(COUNT)
    for rank in range(ranks):
        forwards += terms[rank]
        backwards += terms[ranks - 1 - rank]
    assert payload.wrong(forwards, ranks, first=77) == payload.wrong(backwards, ranks, first=77) == 0


def test_what_is_not_the_sum_is_wrong(payload: Payload) -> None:
    terms = [payload.values(rank) for rank in range(4)]
    total = terms[0] + terms[1] + terms[2] + terms[3]
    for rank in range(4):
        assert payload.wrong(total - terms[rank], 4) > 0.99 * COUNT, f"without rank {rank}"
        assert payload.wrong(total + terms[rank], 4) > 0.99 * COUNT, f"with rank {rank} twice"
    assert payload.wrong(total.roll(1), 4) > 0.99 * COUNT, "displaced by one element"
    for value in (float("nan"), float("inf"), 0.0):
        one_bad = total.clone()
        one_bad[500] = value
        assert payload.wrong(one_bad, 4) == 1
    assert payload.wrong(total.bfloat16().float(), 4) > 0.9 * COUNT, "16 bits are not 32"
