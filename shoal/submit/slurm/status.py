"""What Slurm says of a job -> its state. Pure functions."""

from shoal.submit.slurm.queue import QueuedJob
from shoal.submit.state import JobState, State

# Words of squeue and sacct; any other is one of the many of a job that waits or runs.
_ENDS: dict[str, State] = {
    "COMPLETED": "Completed",
    "CANCELLED": "Stopped",
    "TIMEOUT": "Stopped",
    "FAILED": "Failed",
    "BOOT_FAIL": "Failed",
    "DEADLINE": "Failed",
    "NODE_FAIL": "Failed",
    "OUT_OF_MEMORY": "Failed",
    "PREEMPTED": "Failed",
    "REVOKED": "Failed",
}
_TERMINATED = "Stopped by SIGTERM"  # what `train` begins the failure text with


def job_state(name: str, job: QueuedJob, *, stopped: bool, failure: str) -> JobState:
    """Return the state of a job that Slurm has; `stopped`: somebody asked for its end; `failure`: its failure file."""
    state = _ENDS.get(job.state, "InProgress")
    if state == "InProgress":
        why = f": {job.reason}" if job.state == "PENDING" and job.reason else ""
        return JobState(name, "Stopping" if stopped else state, f"{job.state}{why}")
    if stopped or (state == "Failed" and _TERMINATED in failure):
        state = "Stopped"
    return JobState(name, state, job.state, failure if state == "Failed" else "")


def is_over(state: JobState) -> bool:
    """Whether nothing of the job runs any more."""
    return state.state not in ("InProgress", "Stopping")
