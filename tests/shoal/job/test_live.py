"""The lines about hosts on a terminal: what two samples of the engine say, and what is shown of it."""

import io
from typing import Any

import pytest
from rich.console import Console

from shoal.job.live import Display, Usage, display_for, usage
from shoal.job.metrics import Metrics


def sample(second: int, cpu_ns: int, **memory: Any) -> dict[str, Any]:
    """Return a sample as the engine sends it."""
    return {
        "read": f"2026-01-01T00:00:0{second}.123456789Z",
        "cpu_stats": {"cpu_usage": {"total_usage": cpu_ns}, "online_cpus": 2},
        "memory_stats": {"usage": 5_000_000, "limit": 10**9, "stats": {"total_inactive_file": 1_000_000}, **memory},
        "networks": {"eth0": {"rx_bytes": 1000 * second, "tx_bytes": 4000 * second}},
    }


def test_usage_is_the_difference_over_the_time() -> None:
    used = usage(sample(1, 0), sample(3, 3_000_000_000))
    assert used == Usage(cpu=1.5, memory=4_000_000, memory_limit=10**9, received=1000, sent=4000)
    newer = sample(3, 0, stats={"inactive_file": 2_000_000})
    found = usage(sample(1, 0), newer)
    assert found is not None
    assert found.memory == 3_000_000


@pytest.mark.parametrize("now", [{}, {**sample(3, 0), "memory_stats": {}}, sample(1, 5)])
def test_a_sample_that_says_nothing_is_no_usage(now: dict[str, Any]) -> None:
    assert usage(sample(1, 0), now) is None


def test_each_host_has_its_line() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    metrics = Metrics([])
    display = Display(console, ["algo-1", "algo-2"], metrics)
    display._usages["algo-1"] = Usage(1.5, 4_000_000, 10**9, 1000, 4000)
    display._states["algo-1"] = "running"
    display.ended("algo-2", 3)
    metrics.line("algo-2", b"step 7 of [bold]")
    console.print(display._table())
    assert isinstance(console.file, io.StringIO)
    assert [" ".join(line.split()) for line in console.file.getvalue().splitlines()] == [
        "algo-1 running cpu 150 % memory 4.0 MB of 1.0 GB in 1.0 kB/s out 4.0 kB/s",
        "algo-2 ended with 3 step 7",
    ]


def test_only_a_terminal_has_a_display() -> None:
    none = Metrics([])
    assert display_for(Console(file=io.StringIO()), ["algo-1"], none) is None
    assert display_for(Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"}), ["a"], none) is None
    assert (
        display_for(Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"}), ["a"], none)
        is not None
    )
