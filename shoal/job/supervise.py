"""When to stop the hosts of a job, and why: a clockless, effectless decision maker. `shoal.job.run` feeds and obeys it.

It is told what happened and at what time; it answers which signal is due. The first reason to stop stays the reason.
"""

from dataclasses import dataclass, field
from typing import Literal

STOP_GRACE_S = 120.0  # between SIGTERM and SIGKILL: the service's
PEER_GRACE_S = 10.0  # after a host failed, for the others to notice and end by themselves
FAILED_STOP_GRACE_S = 30.0  # between SIGTERM and SIGKILL in a job that has failed anyway

Reason = Literal["failed", "interrupted", "max-runtime", "spot"]
Signal = Literal["SIGTERM", "SIGKILL"]


@dataclass
class Supervisor:
    """The state of a running job."""

    hosts: tuple[str, ...]
    started: float
    max_runtime_s: float
    spot_after_s: float | None = None  # from the time all hosts are up to an interruption as spot capacity has them
    exit_codes: dict[str, int] = field(default_factory=dict)
    reason: Reason | None = None
    hurried: bool = False  # the user said it again
    _interrupted: bool = False
    _spot_at: float | None = None
    _term_at: float | None = None
    _kill_at: float | None = None

    def up(self, now: float) -> None:
        """Take note that all hosts have been started."""
        if self.spot_after_s is not None:
            self._spot_at = now + self.spot_after_s

    def exited(self, host: str, code: int, now: float) -> None:
        """Take note that a host ended."""
        self.exit_codes[host] = code
        if code != 0 and self.reason is None:
            self.reason = "failed"
            self._term_at = now + PEER_GRACE_S
            self._kill_at = self._term_at + FAILED_STOP_GRACE_S

    def interrupt(self, now: float) -> None:
        """Take note that the user wants the job to stop; said again, at once."""
        if self._interrupted or self.reason == "max-runtime":
            self.hurried = True
            self._term_at, self._kill_at = None, now
        else:
            self._interrupted = True
            self._term_at, self._kill_at = now, now + STOP_GRACE_S
            if self.reason in (None, "spot"):  # a user who wants the end does not want the next beginning
                self.reason = "interrupted"

    def due(self, now: float) -> Signal | None:
        """Return the signal that every running host must get now. Each is returned once."""
        if self.done:
            return None
        if self.reason is None and now >= self.started + self.max_runtime_s:
            self.reason = "max-runtime"
            self._kill_at = now + STOP_GRACE_S
            return "SIGTERM"
        if self.reason is None and self._spot_at is not None and now >= self._spot_at:
            self.reason = "spot"
            self._kill_at = now + STOP_GRACE_S
            return "SIGTERM"
        if self._kill_at is not None and now >= self._kill_at:
            self._term_at = self._kill_at = None
            return "SIGKILL"
        if self._term_at is not None and now >= self._term_at:
            self._term_at = None
            return "SIGTERM"
        return None

    @property
    def next_deadline(self) -> float | None:
        """When `due` must be asked again, if nothing happens before."""
        times = [t for t in (self._term_at, self._kill_at) if t is not None]
        if self.reason is None:
            times.append(self.started + self.max_runtime_s)
            times += [self._spot_at] if self._spot_at is not None else []
        return min(times, default=None)

    @property
    def running(self) -> list[str]:
        """The hosts that have not ended."""
        return [host for host in self.hosts if host not in self.exit_codes]

    @property
    def done(self) -> bool:
        """Whether every host has ended."""
        return not self.running
