"""A job as DescribeTrainingJob and ListTrainingJobs tell it. Pure functions."""

from datetime import datetime
from typing import Any

from shoal.serve.store import Job

FINAL = ("Completed", "Failed", "Stopped")  # TrainingJobStatus
# What the SDK prints beside a stage; `shoal run` has words for some only.
_MESSAGES = {
    "Starting": "Starting the hosts",
    "Downloading": "Fetching the channels",
    "Training": "All hosts run",
    "Uploading": "Collecting what the hosts left",
}
# What the service tells although the request says nothing of it, as it does of the KmsKeyId; SDK v2 attaches with them.
_UNSAID = {
    "EnableNetworkIsolation": False,
    "EnableInterContainerTrafficEncryption": False,
    "EnableManagedSpotTraining": False,
}
# What `shoal run` says of a job that the endpoint cannot know.
_OF_RUN = ("TrainingStartTime", "TrainingEndTime", "TrainingTimeInSeconds", "FinalMetricDataList")


def arn(name: str) -> str:
    """Return a job's ARN: the one that the hosts find in TRAINING_JOB_ARN."""
    return f"arn:aws:sagemaker:local:000000000000:training-job/{name}"


def described(job: Job) -> dict[str, Any]:
    """Return the answer of DescribeTrainingJob, times as ISO 8601 text."""
    transitions = _transitions(job)
    answer = {
        **_UNSAID,
        **{key: value for key, value in job.request.items() if key != "Tags"},
        "OutputDataConfig": {"KmsKeyId": "", **job.request["OutputDataConfig"]},
        "TrainingJobArn": arn(job.name),
        "TrainingJobStatus": job.status,
        "SecondaryStatus": _secondary(job, transitions),
        "SecondaryStatusTransitions": transitions,
        "CreationTime": job.created,
        "LastModifiedTime": job.modified,
        **{key: job.run[key] for key in _OF_RUN if key in job.run},
    }
    if job.model:
        answer["ModelArtifacts"] = {"S3ModelArtifacts": job.model}
    if job.reason:
        answer["FailureReason"] = job.reason
    return answer


def summary(job: Job) -> dict[str, Any]:
    """Return one entry of the answer of ListTrainingJobs, times as ISO 8601 text."""
    fields = ("TrainingJobArn", "TrainingJobStatus", "SecondaryStatus", "CreationTime", "LastModifiedTime")
    full = described(job)
    kept = {field: full[field] for field in (*fields, "TrainingEndTime") if field in full}
    return {"TrainingJobName": job.name, **kept}


def with_times(shape: Any, value: Any) -> Any:
    """Return a value with datetimes where a shape of botocore's model has timestamps and the value has text."""
    if shape.type_name == "timestamp":
        return datetime.fromisoformat(value)
    if shape.type_name == "structure":
        return {key: with_times(shape.members[key], item) for key, item in value.items() if key in shape.members}
    if shape.type_name == "list":
        return [with_times(shape.member, item) for item in value]
    return value


def _secondary(job: Job, transitions: list[dict[str, str]]) -> str:
    if job.phase == "ended":
        return job.secondary
    return "Stopping" if job.stop else transitions[-1]["Status"]


def _transitions(job: Job) -> list[dict[str, str]]:
    entries = job.run.get("SecondaryStatusTransitions", [])
    if job.run.get("TrainingJobStatus") in FINAL:
        entries = entries[:-1]  # the job has ended when its results are uploaded: `job.stages` says so then
    of_run = [
        {**entry, "StatusMessage": _MESSAGES.get(entry["Status"]) or entry.get("StatusMessage", "")}
        for entry in entries
    ]
    # Stable: what began at the same time stays in the order in which it was noted.
    stages = sorted([*job.stages, *of_run], key=lambda entry: datetime.fromisoformat(entry["StartTime"]))
    ends = [entry["StartTime"] for entry in stages[1:]] + ([stages[-1]["StartTime"]] if job.phase == "ended" else [])
    transitions = []
    for index, entry in enumerate(stages):
        kept = {key: entry[key] for key in ("Status", "StartTime", "StatusMessage")}
        transitions.append({**kept, **({"EndTime": ends[index]} if index < len(ends) else {})})
    return transitions
