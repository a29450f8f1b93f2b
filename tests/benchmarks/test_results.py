"""What follows from measured rounds: ratios inside rounds, rounds that do not count, claims."""

from __future__ import annotations

import json

import pytest
from harness.claims import claims_of, waiting_claim
from harness.layout import bytes_of, layout_named, size_name
from harness.results import Cell, Round, cell_from, duration

MIB = 1 << 20


def a_round(seconds: dict[str, float], labels: tuple[str, str] = ("near", "near"), busy: float = 0.0) -> Round:
    cpu = dict.fromkeys(seconds, 1.0)
    return Round([90.0, 90.0], list(labels), busy, seconds, cpu, bound_seconds=0.5)


def test_ratios_are_taken_inside_rounds() -> None:
    # Twice as slow for both in the second round: the ratio of the medians would be 2.5, those of the rounds 2, 3, 2.
    rounds = [a_round({"smddp": 1, "gloo": 2}), a_round({"smddp": 2, "gloo": 6}), a_round({"smddp": 3, "gloo": 6})]
    assert Cell("1x2", "all_reduce", MIB, rounds).ratio("gloo") == 2


def test_rounds_in_which_the_cores_moved_or_others_worked_do_not_count() -> None:
    moved = a_round({"smddp": 9, "gloo": 9}, labels=("near", "far"))
    crowded = a_round({"smddp": 9, "gloo": 9}, busy=0.3)
    good = a_round({"smddp": 1, "gloo": 3}, labels=("far", "far"))
    cell = Cell("1x2", "all_reduce", MIB, [moved, good, crowded])
    assert (cell.ratio("gloo"), cell.labels(), cell.disturbed) == (3, "far 1", False)
    assert Cell("1x2", "all_reduce", MIB, [moved]).disturbed


def test_a_cell_survives_its_json() -> None:
    cell = Cell("1x2", "all_reduce", MIB, [a_round({"smddp": 1.0, "gloo": 2.0, "mpich": 1.5})])
    summary = json.loads(json.dumps(cell.summary()))
    assert cell_from(summary).summary() == summary
    assert (summary["best_peer"], summary["best_peer_over_smddp"], summary["fraction_of_bound"]) == ("mpich", 1.5, 0.5)


def test_where_cores_move_and_add_both_are_the_bound() -> None:
    one = a_round({"smddp": 1.0})
    one.sum_seconds = 0.25
    cell = Cell("2x1@unshaped", "all_reduce", MIB, [one])
    assert (cell.fraction_of_bound(), cell.fraction_with_sums()) == (0.5, 0.75)
    assert Cell("1x2", "all_reduce", MIB, [a_round({"smddp": 1.0})]).fraction_with_sums() is None


def test_a_library_counts_as_it_is_called() -> None:
    seconds = {"smddp": 4.0, "gloo": 9.0, "mpich": 1.0, "intelmpi": 2.0, "intelmpi-torch": 5.0, "mpich-torch": 6.0}
    cell = Cell("1x2", "all_reduce", MIB, [a_round(seconds)])
    assert (cell.best_peer(), cell.best_program()) == ("intelmpi-torch", "mpich")
    # One that was only measured as a program is not left out.
    del seconds["mpich-torch"]
    assert Cell("1x2", "all_reduce", MIB, [a_round(seconds)]).best_peer() == "mpich"


def test_the_control_stands_beside_a_claim_and_is_no_peer() -> None:
    seconds = {"smddp": 4.0, "smddp-again": 2.0, "gloo": 8.0, "mpich": 3.0}
    one = a_round(seconds)
    one.cpu_seconds = {"smddp": 1.0, "smddp-again": 0.5, "gloo": 2.0}
    cell = Cell("2x1@1gbit", "broadcast", MIB, [one])
    assert cell.best_peer() == "mpich"
    assert {claim.what: (claim.measured, claim.control) for claim in claims_of(cell)} == {
        "best peer (mpich) / smddp, time": (0.75, 0.5),
        "gloo / smddp, CPU seconds a byte": (2.0, 0.5),
    }
    summaries = [claim.summary() for claim in claims_of(cell)]
    assert [summary["control"] for summary in summaries] == [0.5, 0.5]
    del one.seconds["smddp-again"], one.cpu_seconds["smddp-again"]
    assert all("control" not in claim.summary() for claim in claims_of(cell))


def verdicts(layout: str, size: int, seconds: dict[str, float], operation: str = "all_reduce") -> dict[str, bool]:
    cell = Cell(layout, operation, size, [a_round(seconds)])
    return {f"{claim.what} {claim.target:g}": claim.holds for claim in claims_of(cell)}


def test_claims_hold_or_do_not() -> None:
    found = verdicts("1x2", 128 * MIB, {"smddp": 1.0, "gloo": 6.5, "openmpi": 3.9, "deepspeed": 1.9})
    assert found == {
        "gloo / smddp, time 6": True,
        "best of MPIs, oneCCL, DeepSpeed (deepspeed) / smddp, time 2": False,
        "openmpi / smddp, time 4": False,
        "part of what memory bandwidth allows 0.6": False,
        "best peer (deepspeed) / smddp, time 1": True,
        "gloo / smddp, CPU seconds a byte 1": True,
    }


def test_four_kibibytes_are_claimed_in_microseconds() -> None:
    assert verdicts("1x2", 4096, {"smddp": 9e-6, "gloo": 2e-3})["microseconds 10"]
    assert not verdicts("1x2", 4096, {"smddp": 11e-6, "gloo": 2e-3})["microseconds 10"]


def test_slower_by_what_rounds_differ_is_equal() -> None:
    assert verdicts("2x1@1gbit", MIB, {"smddp": 1.0, "gloo": 0.985})["best peer (gloo) / smddp, time 1"]
    assert not verdicts("2x1@1gbit", MIB, {"smddp": 1.0, "gloo": 0.97})["best peer (gloo) / smddp, time 1"]
    assert not verdicts("2x2@1gbit", MIB, {"smddp": 1.0, "mpich": 0.9}, "broadcast")[
        "best peer (mpich) / smddp, time 1"
    ]


def test_the_16_bit_wire_has_a_claim_of_its_own() -> None:
    found = verdicts("2x2@1gbit", 128 * MIB, {"smddp": 1.0, "smddp-bf16": 0.5, "gloo": 1.4, "openmpi": 2.0})
    assert found["gloo / smddp-bf16, time 2.6"]
    assert not found["gloo / smddp, time 1.45"]


def test_waiting_ranks_sleep() -> None:
    assert waiting_claim("1x4", 0.02).holds
    assert not waiting_claim("1x4", 0.9).holds


@pytest.mark.parametrize(("text", "size"), [("4K", 4096), ("128M", 128 * MIB), ("640", 640)])
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "K", "-4K", "0", "100", "4T", "1.5M"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--sizes: "):
        bytes_of(text)


def test_names() -> None:
    assert [one.name for one in layout_named("2x2")] == ["2x2@1gbit", "2x2@unshaped"]
    assert [one.name for one in layout_named("8x1@1gbit")] == ["8x1@1gbit"]
    assert [one.name for one in layout_named("1x2")] == ["1x2"]
    for bad in ("1x1", "0x2", "9", "2x2@10gbit", "1x2@1gbit", "1x2@", "8x8", "2x1 "):
        with pytest.raises(ValueError, match="is no layout: write HOSTSxRANKS"):
            layout_named(bad)
    assert layout_named("1x4")[0].words == "1 host x 4 ranks"
    assert layout_named("4x1@1gbit")[0].words == "4 hosts x 1 rank, links of 1 Gbit/s"
    assert (size_name(4096), size_name(3 * MIB), size_name(100)) == ("4 KiB", "3 MiB", "100 B")
    assert (duration(0.0159), duration(1.2), duration(4.2e-6)) == ("15.9 ms", "1.2 s", "4.2 µs")
