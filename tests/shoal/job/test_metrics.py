"""Metrics and steps in what hosts print; the rates that follow."""

from typing import Any

import pytest

from shoal.job import local, spec
from shoal.job.describe import History, description
from shoal.job.metrics import Metrics, Pace, definitions
from shoal.job.plan import make_plan


def metrics(**regexes: str) -> Metrics:
    declared = [{"Name": name.replace("__", ":"), "Regex": regex} for name, regex in regexes.items()]
    return Metrics(definitions({"AlgorithmSpecification": {"MetricDefinitions": declared}}))


def values(found: Metrics) -> dict[str, float]:
    return {entry["MetricName"]: entry["Value"] for entry in found.final()}


def test_the_last_value_of_each_metric_of_any_host_is_final() -> None:
    found = metrics(loss=r"loss=(\S+)", train__acc=r"acc: ([0-9.]+)%", whole=r"\d+e\d+", none="(nothing)")
    for host, line in (
        ("algo-1", b"epoch 1 loss=0.5 acc: 90.5%"),
        ("algo-2", b"loss=0.25\r"),
        ("algo-1", b" 10% loss=0.4\r 20% loss=0.125"),  # a bar that is redrawn: what it shows last
        ("algo-1", b"loss=nan"),
        ("algo-1", b"loss=much"),
        ("algo-1", b"\xff 1e3"),
    ):
        found.line(host, line)
    assert values(found) == {"loss": 0.125, "train:acc": 90.5, "whole": 1000.0}
    assert found.cells("algo-2") == ["1 reports", "loss 0.25"]
    assert found.cells("algo-3") == []


@pytest.mark.parametrize(
    ("regexes", "lines", "shown"),
    [
        ({}, ["step 3", "Iteration: 12/100 loss 1"], "step 12"),
        ({}, ["global_step=8"], "step 8"),
        ({}, ["max_steps=100", "no stepping 3", "two-steps"], None),
        ({"step": r"it (\d+)"}, ["it 5", "step 99"], "step 5"),
        ({"train__global_step": r"it (\d+)"}, ["it 6"], "step 6"),
        ({"footstep": r"it (\d+)"}, ["it 6", "it 7"], "2 reports"),
        # Of several ranks on one stream, one tells the steps.
        ({}, ["[algo-1:0] step 10", "[algo-1:1] step 12", "[algo-1:0] step 11"], "step 11"),
    ],
)
def test_where_a_script_stands(regexes: dict[str, str], lines: list[str], shown: str | None) -> None:
    found = metrics(**regexes)
    for line in lines:
        found.line("algo-1", line.encode())
    cells = found.cells("algo-1")
    assert (cells[0].partition(",")[0] if cells else None) == shown


def test_steps_that_nobody_sees_are_not_looked_for() -> None:
    found = Metrics([], shown=False)
    found.line("algo-1", b"step 3")
    assert found.cells("algo-1") == []


def test_a_rate_is_counted_over_the_last_reports_and_falls_when_they_stop() -> None:
    pace = Pace()
    assert (pace.count, pace.rate(0)) == (None, None)
    for second in range(100):
        pace.report(second, 5 * second)
    assert (pace.count, pace.rate(99)) == (495, 5.0)
    assert pace.rate(101) == 5.0
    assert pace.rate(80 + 190) == pytest.approx(0.5)
    pace.report(100, 0)  # the next epoch counts from 0
    assert (pace.count, pace.rate(101)) == (0, None)
    pace.report(101, 2)
    pace.report(102, 2)  # said again: no progress
    assert pace.rate(101) == 2.0


def test_the_description_is_one_the_service_could_give(request_: dict[str, Any], tmp_path: Any) -> None:
    from datetime import UTC, datetime

    from shoal.serve.view import with_times

    found = metrics(loss=r"loss=(\S+)")
    found.line("algo-1", b"loss=1")
    plan = make_plan(spec.JobFile(tmp_path / "job.json", request_), request_)
    told = description(plan, History(datetime.now(UTC)), ("Completed", "Completed"), metrics=found.final())
    [metric] = with_times(spec.operation_shape("DescribeTrainingJob", "output"), told)["FinalMetricDataList"]
    assert (metric["MetricName"], metric["Value"], type(metric["Timestamp"])) == ("loss", 1.0, datetime)


def test_what_is_no_expression_is_refused(request_: dict[str, Any]) -> None:
    request_["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": "loss=(.*"}]
    [problem] = local.refusals(request_, {})
    assert str(problem).startswith("AlgorithmSpecification.MetricDefinitions[0].Regex: 'loss=(.*' is no regular expr")
