"""What a cluster says of a job and its pods -> the state of the job. Pure functions."""

from typing import Any

from shoal.submit.state import HostState, JobState, State

Manifest = dict[str, Any]

_SUCCEEDED = {"Complete", "SuccessCriteriaMet", "Succeeded"}  # Job and TrainJob; the older operators
_FAILED = {"Failed", "FailureTarget"}


def job_state(job: Manifest, pods: list[Any]) -> JobState:
    """Return the state of a job from its object and its pods (the client's V1Pod)."""
    state, detail = _state(job, pods)
    hosts = tuple(_host(pod) for pod in pods)
    reason = _reason(job, pods) if state == "Failed" else ""
    return JobState(job["metadata"]["name"], state, detail, reason, hosts)


def _conditions(job: Manifest) -> dict[str, Manifest]:
    conditions = job.get("status", {}).get("conditions") or []
    return {condition["type"]: condition for condition in conditions if condition.get("status") == "True"}


def _state(job: Manifest, pods: list[Any]) -> tuple[State, str]:
    true = _conditions(job)
    for names, state in ((_FAILED, "Failed"), (_SUCCEEDED, "Completed")):
        for name in names & true.keys():
            return (state, str(true[name].get("reason") or name))  # type: ignore[return-value]
    spec = job["spec"]
    if spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"):
        alive = any(pod.status.phase in ("Pending", "Running") for pod in pods)
        return ("Stopping", "Suspended") if alive else ("Stopped", "Suspended")
    phases = {pod.status.phase for pod in pods}
    return ("InProgress", "Training" if phases == {"Running"} else "Pending")


def _reason(job: Manifest, pods: list[Any]) -> str:
    """Return the message of the pod that failed first, else the job's own."""
    ends = [(end.finished_at, end.message) for pod in pods if (end := _end(pod)) is not None and end.exit_code != 0]
    said = sorted((end for end in ends if end[1] and end[0]), key=lambda end: end[0])
    if said:
        return str(said[0][1])
    true = _conditions(job)
    return next((str(true[name].get("message", "")) for name in sorted(_FAILED & true.keys())), "")


def _host(pod: Any) -> HostState:
    end = _end(pod)
    return HostState(
        name=pod.metadata.name,
        state=_word(pod),
        node=pod.spec.node_name or "",
        exit_code=end.exit_code if end is not None else None,
    )


def _word(pod: Any) -> str:
    """Return why a pod waits, if it does, as ImagePullBackOff; else its phase."""
    for status in pod.status.container_statuses or []:
        if status.state is not None and status.state.waiting is not None:
            return str(status.state.waiting.reason or pod.status.phase)
    return str(pod.status.phase)


def _end(pod: Any) -> Any:
    for status in pod.status.container_statuses or []:
        if status.state is not None and status.state.terminated is not None:
            return status.state.terminated
    return None
