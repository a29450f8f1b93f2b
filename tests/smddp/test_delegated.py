"""What gloo carries out within the group is counted and remembered as what the core does."""

from __future__ import annotations

from rank_jobs import run_ranks


def test_operations_of_gloo_are_counted_and_remembered() -> None:
    for result in run_ranks("delegated", 3):
        assert result.returncode == 0, result.output
        between = {0: ["send"], 1: ["recv"]}.get(result.rank, [])
        stats = result.report["stats"]
        for name in ["gather", *between]:
            assert stats[name]["calls"] == 1
            assert stats[name]["failures"] == 0
            assert stats[name]["bytes"] == 4000
            assert 0 < stats[name]["exposed_seconds"] <= stats[name]["seconds"] + 0.01
        assert stats["all_to_all"]["bytes"] == 12
        assert stats["monitored_barrier"]["calls"] == 1
        assert 0 < stats["monitored_barrier"]["exposed_seconds"] <= stats["monitored_barrier"]["seconds"] + 0.01
        last = result.report["last"]
        assert [line["operation"] for line in last] == [
            "all_reduce",
            "gather",
            *between,
            "all_to_all",
            "barrier",
            "barrier",
            "monitored_barrier",
        ]
        assert all(line["state"] == "done" for line in last)
        assert [line["sequence"] for line in last] == [1, 2, *[None] * len(between), 3, 4, 5, None]
        by_gloo = [line["operation"] for line in last if "delegated" in line]
        assert by_gloo == ["gather", *between, "all_to_all", "monitored_barrier"]
        assert [line["peer"] for line in last if "peer" in line] == ([1 - result.rank] if between else [])
        # Threads of gloo must not hold what Python knows: to drop it takes the interpreter, which may be ending.
        assert result.report["held"] == [0, 0]
