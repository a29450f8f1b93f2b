"""The metrics of a job, found in what its hosts print by the regular expressions of `MetricDefinitions`, and its steps.

A script says how far it is in its log lines, so that it needs no change. A definition whose name is or ends in `step`
says where the step's number stands; without one, `step 12` in a line does. Where neither is found, the lines that hold
a metric are counted instead.
"""

import math
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_COUNTER = re.compile(r"(?:^|[^a-z])(?:step|iteration)s?$")
_SAID_STEP = re.compile(r"(?<![a-z_])(?:global_?)?(?:step|iteration)s?[ \t]*[ :=#][ \t]*(\d+)")
_RANK = re.compile(r"^\[[^\]\s]+:\d+\] ")  # what `train` puts before the lines of ranks that share a stream
_LONGEST = 16_384  # characters of a line that are searched: a user's expression may need the square of them
_WINDOW = 20  # reports that a rate is taken over
_PATIENCE = 3.0  # so many times the usual pause, and the rate falls


@dataclass(frozen=True)
class Definition:
    """One metric and where its value stands in a line."""

    name: str
    pattern: re.Pattern[str]

    def value(self, line: str) -> float | None:
        """Return the value in a line; None if there is none, or no finite number."""
        found = self.pattern.search(line)
        if found is None:
            return None
        try:
            value = float(found.group(1) if self.pattern.groups else found.group())
        except (TypeError, ValueError):  # the group has no part in the match; it is no number
            return None
        return value if math.isfinite(value) else None


def definitions(request: Mapping[str, Any]) -> tuple[Definition, ...]:
    """Return the metrics of a valid request whose expressions all can be compiled."""
    declared = request.get("AlgorithmSpecification", {}).get("MetricDefinitions", [])
    return tuple(Definition(each["Name"], re.compile(each["Regex"])) for each in declared)


class Pace:
    """How fast a count that is reported now and then goes up."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, float]] = deque(maxlen=_WINDOW)  # (time, count)

    def report(self, now: float, count: float) -> None:
        """Take note of a count. One that is lower than the last begins anew."""
        if self._reports and count < self._reports[-1][1]:
            self._reports.clear()
        if not self._reports or count > self._reports[-1][1]:
            self._reports.append((now, count))

    @property
    def count(self) -> float | None:
        """The last count."""
        return self._reports[-1][1] if self._reports else None

    def rate(self, now: float) -> float | None:
        """Return how much was counted a second; None before the second report."""
        if len(self._reports) < 2:
            return None
        (began, first), (ended, last) = self._reports[0], self._reports[-1]
        if ended <= began:
            return None
        pause = (ended - began) / (len(self._reports) - 1)
        # A script that has stopped to report is not as fast as it was.
        until = ended if now - ended < _PATIENCE * pause else now
        return (last - first) / (until - began)


class _Host:
    def __init__(self) -> None:
        self.rank: str | None = None  # whose lines tell the steps: of several ranks each would tell all of them
        self.steps, self.lines, self.matched = Pace(), Pace(), 0
        self.values: dict[str, float] = {}


class Metrics:
    """What the hosts of a job have told so far. Lines come from one thread a host."""

    def __init__(self, defined: Sequence[Definition], *, shown: bool = True) -> None:
        """Look for what is `defined`, and for steps if they are `shown` to anybody."""
        self.defined, self._shown = tuple(defined), shown
        self._counter = next((each for each in defined if _COUNTER.search(each.name.lower())), None)
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}
        self._last: dict[str, tuple[float, datetime]] = {}

    def line(self, host: str, line: bytes) -> None:
        """Look for metrics and steps in a line of a host."""
        if not (self.defined or self._shown):
            return
        text = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2][:_LONGEST]
        # Searched before the lock is taken: an expression may take long, and the display must not wait for it.
        values = {each.name: value for each in self.defined if (value := each.value(text)) is not None}
        step = self._step(text, values)
        if not values and step is None:
            return
        rank = found.group() if (found := _RANK.match(text)) else ""
        now = time.monotonic()
        with self._lock:
            here = self._hosts.setdefault(host, _Host())
            here.values |= values
            self._last |= {name: (value, datetime.now(UTC)) for name, value in values.items()}
            if values:
                here.matched += 1
                here.lines.report(now, here.matched)
            if step is not None:
                here.rank = rank if here.rank is None else here.rank
                if rank == here.rank:
                    here.steps.report(now, step)

    def _step(self, text: str, values: Mapping[str, float]) -> float | None:
        if self._counter is not None:
            return values.get(self._counter.name)
        lower = text.lower() if self._shown else ""
        if "step" not in lower and "iteration" not in lower:  # most lines: a tenth of what the expression takes
            return None
        found = _SAID_STEP.search(lower)
        return float(found.group(1)) if found else None

    def cells(self, host: str) -> list[str]:
        """Return what is to be shown of a host: its steps, then the last value of each metric."""
        with self._lock:
            here = self._hosts.get(host)
            if here is None:
                return []
            counter = self._counter.name if self._counter is not None else None
            values = [f"{name} {value:.5g}" for name, value in here.values.items() if name != counter]
            return [_pace(here, time.monotonic()), *values]

    def final(self) -> list[dict[str, Any]]:
        """Return the last value of each metric, as DescribeTrainingJob has them."""
        with self._lock:
            return [
                {"MetricName": name, "Value": value, "Timestamp": when.isoformat()}
                for name, (value, when) in self._last.items()
            ]


def _pace(host: _Host, now: float) -> str:
    if (step := host.steps.count) is not None:
        rate = host.steps.rate(now)
        return f"step {step:.0f}" + (f", {_number(rate)}/s" if rate is not None else "")
    rate = host.lines.rate(now)
    return f"{host.matched} reports" + (f", {_number(rate)}/s" if rate is not None else "")


def _number(rate: float) -> str:
    return f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"
