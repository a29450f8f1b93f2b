"""The description of a job: the service's fields, the reason of the host that failed first."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.job import spec
from shoal.job.describe import History, HostEnd, description, failure_reason, final_status
from shoal.job.plan import make_plan
from shoal.job.shape import Rules, check

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def end(name: str, code: int, finished: str = "2026-01-01T00:00:09Z", failure: str = "", oom: bool = False) -> HostEnd:
    return HostEnd(name, code, "2026-01-01T00:00:00Z", finished, oom, failure)


def test_the_description_is_one_the_service_could_give(request_: dict[str, Any]) -> None:
    request_["Tags"] = [{"Key": "a", "Value": "b"}]
    plan = make_plan(spec.JobFile(Path("/jobs/job.json"), request_), request_)
    history = History(NOON)
    for seconds, stage in ((0, "Starting"), (2, "Training"), (9, "Uploading"), (10, "Failed")):
        history.enter(stage, NOON + timedelta(seconds=seconds), "text")
    told = description(plan, history, ("Failed", "Failed"), "why", [end("algo-1", 1)])
    own = told.pop("Shoal")
    allowed = check(
        spec.operation_shape("DescribeTrainingJob", "output"),
        told,
        Rules(lambda shape, value: isinstance(value, str) and value.startswith("file://")),
    )
    assert allowed == []
    assert own["Hosts"][0]["ExitCode"] == 1
    assert told["TrainingTimeInSeconds"] == 7
    assert told["FailureReason"] == "why"
    assert told["SecondaryStatusTransitions"][1]["EndTime"] == told["SecondaryStatusTransitions"][2]["StartTime"]
    assert told["ModelArtifacts"] == {"S3ModelArtifacts": "file:///jobs/runs/job/output/model.tar.gz"}


def test_the_first_host_to_fail_gives_the_reason() -> None:
    late = end("algo-1", 1, "2026-01-01T00:00:08.123456789Z", "algo-2 has failed")
    first = end("algo-2", 1, "2026-01-01T00:00:08.12Z", "ValueError: " + "x" * 2000)
    reason = failure_reason([late, first, end("algo-3", 0, "2026-01-01T00:00:01Z", "left from before")])
    assert reason == first.failure[:1024]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (end("algo-1", 3), "AlgorithmError: algo-1 ended with exit code 3"),
        (end("algo-1", 139), "AlgorithmError: algo-1 ended with exit code 139 (signal 11)"),
        (end("algo-1", 255), "AlgorithmError: algo-1 ended with exit code 255\n"),
        (end("algo-1", 137, oom=True), "AlgorithmError: algo-1 ended with exit code 137 (out of memory: killed by the"),
    ],
)
def test_without_a_failure_file_the_exit_code_speaks(host: HostEnd, expected: str) -> None:
    assert f"{failure_reason([host])}\n".startswith(expected)


def test_statuses_are_the_services() -> None:
    known = spec.operation_shape("DescribeTrainingJob", "output").members
    for reason in (None, "failed", "interrupted", "max-runtime"):
        status, secondary = final_status(reason)
        assert status in known["TrainingJobStatus"].enum
        assert secondary in known["SecondaryStatus"].enum
