"""Plots drawn by two processes."""

import os
import sys

import pytest

from shoal.report import draw, plots
from shoal.report.shapes import Line, Timeline


def drawings(count: int) -> list[draw.Drawing]:
    lines = [Timeline(f"algo-{n}", [Line("CPU", [0.0, 1.0], [5.0, 6.0])], [], []) for n in range(count)]
    return [draw.Drawing(plots.timeline, (n, line, 1.0)) for n, line in enumerate(lines)]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core draws as fast alone")
def test_two_processes_draw_and_their_plots_come_in_order() -> None:
    with draw.drawing(hosts=8) as there:
        pids = there([draw.Drawing(os.getpid, ())] * 4)  # type: ignore[arg-type]
    theirs, ours = set(pids[:2]), set(pids[2:])
    assert len(theirs) == 1
    assert ours == {os.getpid()} != theirs  # type: ignore[comparison-overlap]
    with draw.drawing(hosts=8) as there:
        drawn = there(drawings(5))
    alone = draw.here(drawings(5))
    assert [(plot.name, plot.title) for plot in drawn] == [(plot.name, plot.title) for plot in alone]
    assert all(plot.wide.startswith("<svg") and plot.narrow.startswith("<svg") for plot in drawn)


def test_without_its_helper_the_page_has_every_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with draw.drawing(hosts=8) as there:
        assert [plot.name for plot in there(drawings(3))] == ["host-0", "host-1", "host-2"]


def test_a_few_hosts_are_drawn_here() -> None:
    with draw.drawing(hosts=2) as there:
        assert there is draw.here
