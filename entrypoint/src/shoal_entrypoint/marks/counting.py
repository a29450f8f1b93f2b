"""What libraries count of their collectives, a step at a time."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Tuple

__all__ = ["Count", "Counters", "Counting"]

Counters = Callable[[], Mapping[str, Tuple[int, int, float, float]]]


class Count(NamedTuple):
    """What one kind of operation has done. Times in seconds."""

    calls: int
    bytes: int
    seconds: float
    blocked: float

    def shown(self) -> dict[str, Any]:
        """Return the fields of the step's line; without times where nobody measures how long operations take."""
        found: dict[str, Any] = {"Calls": self.calls, "Bytes": self.bytes}
        if self.seconds > 0:
            found.update(Seconds=self.seconds, BytesPerSecond=self.bytes / self.seconds)
        return found


class Counting:
    """The counters of all libraries of this process, and how far they were when the step began."""

    def __init__(self) -> None:
        self._sources: list[Counters] = []
        self._before: dict[str, Count] = {}

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
        if not self._sources:
            return None
        nothing = Count(0, 0, 0.0, 0.0)
        return {
            name: Count(*(max(0, new - old) for new, old in zip(count, self._before.get(name, nothing))))  # type: ignore[arg-type]
            for name, count in self._now().items()
        }

    def _now(self) -> dict[str, Count]:
        found: dict[str, Count] = {}
        for source in list(self._sources):
            try:
                counters = source()
            except Exception:  # another library's code: it must not cost the job a step
                self._sources.remove(source)
                continue
            for name, values in counters.items():
                known = found.get(name)
                found[name] = Count(*(map(sum, zip(known, values)) if known else values))
        return found
