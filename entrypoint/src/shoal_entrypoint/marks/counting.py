"""What libraries count of their collectives, a step at a time."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Tuple

__all__ = ["Count", "Counters", "Counting"]

Totals = Mapping[str, Tuple[int, int, float, float]]
Counters = Callable[[], Totals]
_NOTHING = (0, 0, 0.0, 0.0)


class Count(NamedTuple):
    """What one kind of operation has done. Times in seconds."""

    calls: int
    bytes: int
    seconds: float
    blocked: float

    def shown(self) -> dict[str, Any]:
        """Return the fields of the step's line; without times where nobody measures how long operations take."""
        if self.seconds <= 0:
            return {"Calls": self.calls, "Bytes": self.bytes}
        rate = self.bytes / self.seconds
        return {"Calls": self.calls, "Bytes": self.bytes, "Seconds": self.seconds, "BytesPerSecond": rate}


class Counting:
    """The counters of all libraries of this process, and how far they were when the step began."""

    def __init__(self) -> None:
        self._sources: list[Counters] = []
        self._before: list[Totals] = []

    def add(self, counters: Counters) -> None:
        """Count these too."""
        if counters not in self._sources:
            self._sources.append(counters)
            self.begin()

    def begin(self) -> None:
        """A step begins."""
        self._before = self._now()

    def since(self) -> dict[str, Count] | None:
        """Return what was done since then, by kind of operation; None where nobody counts."""
        now = self._now()
        if not now:
            return None
        found: dict[str, Count] = {}
        for totals, before in zip(now, self._before):
            for name, new in totals.items():
                old = before.get(name, _NOTHING)
                if new == old:
                    continue  # most kinds in most steps
                known = found.get(name, _NOTHING)
                found[name] = Count(
                    known[0] + max(0, new[0] - old[0]),
                    known[1] + max(0, new[1] - old[1]),
                    known[2] + max(0.0, new[2] - old[2]),
                    known[3] + max(0.0, new[3] - old[3]),
                )
        return found

    def _now(self) -> list[Totals]:
        try:
            return [source() for source in self._sources]
        except Exception:  # a library's code: it must not cost the job a step
            self._sources.clear()
            return []
