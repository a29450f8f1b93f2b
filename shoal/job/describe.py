"""A job as DescribeTrainingJob would tell it: from what happened to the description. No effects.

What the service has no field for (exit code and times of each host) is under the one extra key, `Shoal`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal.job.objects import joined
from shoal.job.plan import Plan
from shoal.job.supervise import Reason

_LAST_SIGNAL = 64  # of Linux
_NOT_FOUND = 127  # as a shell, and the engine's init, say
FAILURE_CHARACTERS = 1024  # of the failure file, as the service shows them

# Why the hosts were stopped -> TrainingJobStatus, SecondaryStatus.
_ENDS: dict[Reason | None, tuple[str, str]] = {
    None: ("Completed", "Completed"),
    "failed": ("Failed", "Failed"),
    "interrupted": ("Stopped", "Stopped"),
    "max-runtime": ("Stopped", "MaxRuntimeExceeded"),
    "spot": ("InProgress", "Interrupted"),
}


@dataclass
class History:
    """The stages a job went through, each with the time it began."""

    created: datetime
    stages: list[tuple[str, datetime, str]] = field(default_factory=list)

    def enter(self, stage: str, now: datetime, message: str = "") -> None:
        """Note that a stage begins."""
        self.stages.append((stage, now, message))

    def began(self, stage: str) -> datetime | None:
        """Return when a stage began."""
        return next((time for name, time, _message in self.stages if name == stage), None)

    def seconds(self, stage: str) -> float:
        """Return how long a stage has lasted, all its times together; a last stage has not lasted yet."""
        later = [time for _name, time, _message in self.stages[1:]]
        spans = zip(self.stages, later, strict=False)
        return sum((end - began).total_seconds() for (name, began, _message), end in spans if name == stage)


@dataclass(frozen=True)
class HostEnd:
    """How one host ended, as the engine says."""

    name: str
    exit_code: int
    started: str
    finished: str
    out_of_memory: bool
    failure: str  # the text of its failure file; empty if it wrote none


def final_status(reason: Reason | None, *, given_up: bool = False) -> tuple[str, str]:
    """Return (TrainingJobStatus, SecondaryStatus) of a job whose hosts have ended.

    A job whose results were given up has not completed, however well its hosts have ended.
    """
    return _ENDS["interrupted" if given_up and reason is None else reason]


def failure_reason(ends: list[HostEnd]) -> str:
    """Return why a job failed: the word of the host that failed first, or what its exit code says."""
    # Compared as times: the engine drops trailing zeros, so that text does not sort.
    failed = sorted((e for e in ends if e.exit_code != 0), key=lambda end: datetime.fromisoformat(end.finished))
    if not failed:
        return ""
    first = failed[0]
    if first.failure.strip():
        return first.failure[:FAILURE_CHARACTERS]
    why = f"exit code {first.exit_code}"
    if first.out_of_memory:
        why += " (out of memory: killed by the kernel)"
    elif first.exit_code == _NOT_FOUND:
        why += " (its command, or a command in it, was not found)"
    elif 128 < first.exit_code <= 128 + _LAST_SIGNAL:
        why += f" (signal {first.exit_code - 128})"
    return f"AlgorithmError: {first.name} ended with {why}"


def description(
    plan: Plan,
    history: History,
    status: tuple[str, str],
    reason: str = "",
    ends: list[HostEnd] | None = None,
    model: str = "",
    metrics: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return the description of a job, ready for JSON."""
    last = history.stages[-1][1] if history.stages else history.created
    request = {key: value for key, value in plan.request.items() if key != "Tags"}  # told by ListTags
    described = {
        **request,
        "TrainingJobArn": plan.arn,
        "TrainingJobStatus": status[0],
        "SecondaryStatus": status[1],
        "ModelArtifacts": {"S3ModelArtifacts": model or model_uri(plan, uploaded=True)},
        "CreationTime": history.created.isoformat(),
        "LastModifiedTime": last.isoformat(),
        "SecondaryStatusTransitions": _transitions(history),
    }
    if reason:
        described["FailureReason"] = reason
    if metrics:
        described["FinalMetricDataList"] = list(metrics)
    began, ended = history.began("Training"), history.began("Uploading")
    if began is not None:
        described["TrainingStartTime"] = began.isoformat()
    if began is not None and ended is not None:
        described["TrainingEndTime"] = last.isoformat()
        described["TrainingTimeInSeconds"] = round(history.seconds("Training"))
    described["Shoal"] = {"Hosts": [_host(end) for end in ends or []]}
    return described


def model_uri(plan: Plan, *, uploaded: bool) -> str:
    """Return where the model of a job lies: an archive, or a folder if the request wants no compression.

    That is in the run folder if the job's output is not in S3, or could not be brought there.
    """
    name = "model.tar.gz" if plan.compressed else "model"
    if plan.output_uri is not None and uploaded:
        return joined(plan.output_uri, name)
    return (plan.run_folder / "output" / name).as_uri()


def _transitions(history: History) -> list[dict[str, str]]:
    ends = [time for _stage, time, _message in history.stages[1:]]
    transitions = []
    for index, (stage, began, message) in enumerate(history.stages):
        entry = {"Status": stage, "StartTime": began.isoformat()}
        if index < len(ends):
            entry["EndTime"] = ends[index].isoformat()
        if message:
            entry["StatusMessage"] = message
        transitions.append(entry)
    return transitions


def _host(end: HostEnd) -> dict[str, object]:
    return {
        "Host": end.name,
        "ExitCode": end.exit_code,
        "StartTime": end.started,
        "EndTime": end.finished,
        "OutOfMemory": end.out_of_memory,
    }
