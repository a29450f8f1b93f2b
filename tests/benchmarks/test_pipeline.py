"""`benchmarks/pipeline.py` as a user starts it, and what it makes of what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness.pipeline import memory_case, sleep_case
from harness.pipeline_page import claims, steps_row, text

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "pipeline.py"
# Seconds of three rounds, in which the machine was slow once: ratios are taken inside a round.
ROUNDS = {
    "gpipe": [1.1, 2.2, 1.1],
    "1f1b": [1.0, 2.0, 1.0],
    "smp": [1.0, 2.0, 1.25],
    "smp, active = M": [1.1, 2.2, 1.1],
}


def finished(*arguments: str) -> tuple[int, list[str], str]:
    argv = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=280)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_a_short_pipeline_of_every_side() -> None:
    words = ["--part", "sleep", "--ranks", "2", "--microbatches", "2", "--rounds", "1", "--json"]
    code, out, err = finished(*words)
    assert code == 0, err
    assert len(out) == 1
    (row,) = json.loads(out[0])["rows"]
    assert list(row["seconds"]) == ["gpipe", "1f1b", "smp", "smp, active = M"]
    # Two micro-batches of 60 ms on two ranks: no schedule is shorter than three of them.
    assert all(seconds >= 0.18 for times in row["seconds"].values() for seconds in times)
    assert len(json.loads(out[0])["claims"]) == 2


def test_a_remote_call_is_measured_both_ways() -> None:
    code, out, err = finished("--part", "hop", "--rounds", "1", "--json")
    assert code == 0, err
    (row,) = json.loads(out[-1])["rows"]
    assert all(value > 0 for values in row["milliseconds"].values() for value in values)


def test_ratios_are_taken_inside_a_round() -> None:
    row = steps_row(sleep_case(2, 8), ROUNDS)
    default, unlimited = claims([row])
    assert (default["measured"], default["holds"]) == (1.0, True)
    assert (unlimited["measured"], unlimited["holds"]) == (0.9091, False)
    assert "DOES NOT HOLD: sleep, 2 ranks, 8 micro-batches" in text([row], [default, unlimited])


def test_the_range_of_a_ratio_is_told() -> None:
    row = steps_row(sleep_case(2, 8), ROUNDS)
    default, unlimited = claims([row])
    assert default["interval"] == [0.8, 1.0]  # the least and the most of its three rounds
    assert unlimited["interval"] == [0.9091, 0.9091]  # the same in each
    assert "1 (target >= 0.97; 95 %: 0.8 to 1)" in text([row], [default])


def test_the_worst_rank_counts_for_memory() -> None:
    case = memory_case()
    row = {"case": case.name, "part": "memory", "peak_bytes": {"single": [1000], "smp": [500, 700]}}
    (claim,) = claims([row])
    assert (claim["measured"], claim["holds"]) == (0.7, False)


def test_a_wrong_part_is_named() -> None:
    code, _, err = finished("--part", "sleeping")
    assert code == 2
    assert "'sleeping' is none of sleep, compute, memory, hop" in err
