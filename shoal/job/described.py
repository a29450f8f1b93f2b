"""The file `job.json` of a run: what DescribeTrainingJob would answer, kept true from the start of a job to its end.

A little of the disk is held back for it, so that the end of a job is told on a full disk, too.
"""

import json
from typing import Any

from shoal.job.artifacts import UNFINISHED, finished_or_absent
from shoal.job.describe import History, HostEnd, description
from shoal.job.metrics import Metrics
from shoal.job.plan import Plan

_RESERVE = 1 << 16  # bytes


class DescriptionFile:
    """The description of one job, in its run folder."""

    def __init__(self, plan: Plan, history: History, metrics: Metrics) -> None:
        self._plan, self._history, self._metrics = plan, history, metrics
        self._file = plan.run_folder / "job.json"
        self._reserve = plan.run_folder / f".reserve{UNFINISHED}"

    def hold_room(self) -> None:
        """Hold room back for the words at the end.

        Raises:
            OSError: there is none.
        """
        self._reserve.write_bytes(bytes(_RESERVE))

    def give_room_back(self) -> None:
        """Hold nothing back any more."""
        self._reserve.unlink(missing_ok=True)

    def write(
        self, status: tuple[str, str], reason: str = "", ends: list[HostEnd] | None = None, model: str = ""
    ) -> dict[str, Any]:
        """Write what DescribeTrainingJob would answer now; return it.

        Raises:
            OSError: it cannot be written.
        """
        described = description(self._plan, self._history, status, reason, ends, model, self._metrics.final())
        try:
            self._put(described)
        except OSError:
            if not self._reserve.exists():
                raise
            self.give_room_back()
            self._put(described)
        return described

    def refresh(self) -> None:
        """Write how a job that trains stands, if the disk has room of its own for that.

        Raises:
            OSError: it has none.
        """
        status = ("InProgress", "Training")
        self._put(description(self._plan, self._history, status, metrics=self._metrics.final()))

    def _put(self, described: dict[str, Any]) -> None:
        with finished_or_absent(self._file) as file:
            file.write((json.dumps(described, indent=2) + "\n").encode())
