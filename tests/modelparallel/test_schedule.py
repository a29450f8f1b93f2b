"""The simulated schedule: bounds that are known in closed form, and the rules, on random ways through the ranks."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smdistributed.modelparallel.torch.partition.draw import svg
from smdistributed.modelparallel.torch.partition.schedule import BACKWARD, FORWARD, Event, Schedule, Visit, simulate

WAYS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=6)
PIPELINES = st.sampled_from(["interleaved", "simple", "_only_forward"])


def chain(ranks: int) -> list[Visit]:
    return [Visit(rank, 1.0) for rank in range(ranks)]


@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 4), (2, 8), (4, 8), (4, 16)])
def test_even_stages_have_the_known_bubble(pipeline: str, ranks: int, microbatches: int) -> None:
    """(P - 1) / (M + P - 1), for GPipe and for 1F1B, with all micro-batches active."""
    schedule = simulate(chain(ranks), ranks, microbatches, microbatches, pipeline)
    assert schedule.length == pytest.approx((microbatches + ranks - 1) * 3)
    assert schedule.bubble == pytest.approx((ranks - 1) / (microbatches + ranks - 1))


def test_the_default_bound_on_active_microbatches_costs_nothing_interleaved() -> None:
    """P + 2 active ones are as good as all of them; one is no pipeline; simple needs all."""
    default, one = (simulate(chain(4), 4, 16, active) for active in (6, 1))
    assert default.length == pytest.approx(19 * 3)
    assert one.length == pytest.approx(16 * 4 * 3)
    assert simulate(chain(4), 4, 16, 6, "simple").length > default.length


@pytest.mark.parametrize("microbatches", [8, 16, 32])
def test_a_loss_on_the_first_rank_costs_two_stages_nothing(microbatches: int) -> None:
    """The default bound, hops that take time: as long as 1F1B, whose loss lies on the last stage, but for some hops."""
    way = [Visit(0, 20.0), Visit(1, 20.0), Visit(0, 0.0)]
    schedule = simulate(way, 2, microbatches, 4, hop=0.3)
    assert schedule.length <= (microbatches + 1) * 60.0 + 4 * 0.3


@given(WAYS, st.integers(1, 7), st.integers(1, 8), PIPELINES)
@settings(max_examples=200, deadline=None)
def test_rules(way: list[tuple[int, int]], microbatches: int, active: int, pipeline: str) -> None:
    """Every task once and in its order, one at a time on a rank, never more than `active` under way (statement 27)."""
    visits = [Visit(rank, float(cost)) for rank, cost in way]
    schedule = simulate(visits, 4, microbatches, active, pipeline)
    phases = [FORWARD] if pipeline == "_only_forward" else [FORWARD, BACKWARD]
    expected = {(m, p, v) for m in range(microbatches) for p in phases for v in range(len(visits))}
    found = {(event.microbatch, event.phase, event.visit): event for event in schedule.events}
    assert set(found) == expected
    assert len(schedule.events) == len(expected)
    for microbatch in range(microbatches):
        path = [found[microbatch, FORWARD, visit] for visit in range(len(visits))]
        if BACKWARD in phases:
            path += [found[microbatch, BACKWARD, visit] for visit in reversed(range(len(visits)))]
        assert all(one.end <= other.start for one, other in itertools.pairwise(path))
    for rank in range(4):
        own = [event for event in schedule.events if event.rank == rank]
        assert all(one.end <= other.start for one, other in itertools.pairwise(own))
    for event in schedule.events:
        assert under_way(schedule, event.start) <= active


def under_way(schedule: Schedule, moment: float) -> int:
    spans: dict[int, tuple[float, float]] = {}
    for event in schedule.events:
        start, end = spans.get(event.microbatch, (event.start, event.end))
        spans[event.microbatch] = (min(start, event.start), max(end, event.end))
    return sum(start <= moment < end for start, end in spans.values())


def test_simple_runs_all_forwards_first() -> None:
    """Statement 27: no backward starts before the last forward ended; interleaved starts the first much earlier."""

    def first_and_last(pipeline: str) -> tuple[float, float]:
        events = simulate(chain(3), 3, 6, 6, pipeline).events
        return (
            min(event.start for event in events if event.phase == BACKWARD),
            max(event.end for event in events if event.phase == FORWARD),
        )

    first, last = first_and_last("simple")
    assert first >= last
    first, last = first_and_last("interleaved")
    assert first < last


# Milliseconds of a step of the server, measured on a busy machine: stages that sleep 20 ms forward and 40 ms backward,
# by (ranks, micro-batches, active ones). Stages in an nn.Sequential, and in an nn.ModuleList of a module on rank 0.
MEASURED_SEQUENTIAL = {
    **{(2, 8, 2): 711, (2, 8, 4): 561, (2, 8, 8): 562, (4, 8, 4): 793, (4, 8, 6): 715, (4, 8, 8): 692},
    **{(4, 16, 4): 1463, (4, 16, 6): 1234, (4, 16, 16): 1195},
}
MEASURED_LIST = {
    **{(2, 8, 4): 573, (4, 8, 6): 823, (4, 8, 8): 804, (4, 16, 4): 1776, (4, 16, 6): 1500, (4, 16, 16): 1337},
}


@pytest.mark.parametrize("listed", [False, True])
def test_close_to_what_was_measured(listed: bool) -> None:
    """Within 8 %, also where the order in which things happen matters more than their length."""
    for (ranks, microbatches, active), measured in (MEASURED_LIST if listed else MEASURED_SEQUENTIAL).items():
        way = [Visit(0, 20.0)]
        for rank in range(1, ranks):
            way += [Visit(rank, 20.0), *([Visit(0, 0.0)] if listed else [])]
        way += [] if listed else [Visit(0, 0.0)]
        schedule = simulate(way, ranks, microbatches, active, hop=0.1)
        assert schedule.length == pytest.approx(measured, rel=0.08)


def test_hops_take_time() -> None:
    assert simulate(chain(2), 2, 1, 1, hop=0.5).length == pytest.approx(2 * 3 + 2 * 0.5)
    assert simulate([], 2, 3, 3).length == 0.0


def test_the_picture_shows_every_task() -> None:
    """Valid XML; a box with its number for each task, inside the picture, none over another one of its row."""
    schedule = simulate(chain(3), 3, 4, 4)
    root = ElementTree.fromstring(svg(schedule, title='a "quoted" <title>'))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [each for each in root.iter(f"{space}rect") if each.find(f"{space}title") is not None]
    assert len(boxes) == len(schedule.events) == 3 * 4 * 2
    named = [re.fullmatch(r"(\w+) of micro-batch (\d) on rank (\d)", title_of(each, space)) for each in boxes]
    assert {match.groups() for match in named if match} == {
        (phase, str(m), str(r)) for phase in (FORWARD, BACKWARD) for m in range(4) for r in range(3)
    }
    assert all(float(each.attrib["x"]) + float(each.attrib["width"]) <= 944.1 for each in boxes)
    numbers = [text.text for text in root.iter(f"{space}text") if text.attrib.get("text-anchor") == "middle"]
    assert sorted(map(str, numbers)) == sorted(str(m) for m in range(4) for _ in range(6))


def title_of(element: ElementTree.Element, space: str) -> str:
    title = element.find(f"{space}title")
    return (title.text or "") if title is not None else ""


def test_events_are_plain_values() -> None:
    assert simulate(chain(1), 1, 1, 1, "_only_forward").events == [Event(0, 0, FORWARD, 0, 0.0, 1.0)]
