"""`exposed_seconds` is the time in which the program was blocked: not less under DDP, not more with several threads."""

from __future__ import annotations

from rank_jobs import run_ranks

LATE = 0.3  # how long rank 0 misses rank 1, each time


def test_exposed_seconds_are_those_in_which_somebody_was_blocked() -> None:
    report = run_ranks("exposure", 2)[0].report
    for part in ("ddp", "threads"):
        seconds, exposed = report[part]
        assert 0.9 * LATE < exposed < 1.1 * seconds + 0.05, (part, report)
    seconds, exposed = report["hidden"]
    assert seconds > 0.9 * LATE
    assert exposed < 0.5 * LATE, report
