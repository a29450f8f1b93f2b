"""How a host's part, or the whole job, ended: an exit code and the text of the failure file."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SUCCESS", "JobError", "Outcome", "stopped_early"]


class Outcome(NamedTuple):
    """The end of a part. `failure` is None exactly when `exit_code` is 0."""

    exit_code: int
    failure: str | None

    @property
    def failed(self) -> bool:
        """Whether anything went wrong."""
        return self.exit_code != 0


SUCCESS = Outcome(0, None)


class JobError(Exception):
    """The job cannot go on; `text` is what the failure file will say."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.text = text
        # A failure never exits 0, whatever the caller passed.
        self.exit_code = exit_code if 0 < exit_code < 256 else 1

    @property
    def outcome(self) -> Outcome:
        """This error as the end of a part."""
        return Outcome(self.exit_code, self.text)


def stopped_early(signum: int) -> JobError:
    """The job was stopped before the user's code ran."""
    return JobError(f"Stopped by signal {int(signum)} before the script was started.", 128 + int(signum))
