"""What every place that runs jobs can do, and what it is given to do it with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shoal.job.spec import JobFile, Request
from shoal.submit.state import JobState


@dataclass(frozen=True)
class Submission:
    """A valid request with what the command line says beside it."""

    job: JobFile
    request: Request
    channels: Mapping[str, str]  # channel -> place, in the target's own notation
    output: str | None
    checkpoints: str | None
    extra: Mapping[str, object] = field(default_factory=dict)  # options of the one target, by their names


class Target(Protocol):
    """A cluster or a cloud."""

    def dry_run(self, submission: Submission) -> str:
        """Return what `submit` would send, as text; send nothing."""

    def submit(self, submission: Submission) -> str:
        """Send a job; return a line that says where it is."""

    def status(self, name: str) -> JobState:
        """Return how a job is."""

    def logs(self, name: str, *, follow: bool) -> None:
        """Print what its hosts wrote."""

    def stop(self, name: str, *, remove: bool) -> str:
        """Stop a job, with its grace; with `remove`, leave nothing of it. Return a line that says what was done."""
