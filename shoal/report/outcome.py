"""What a rule says of a run, and the shape in which the service's own reports say it."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Evidence:
    """One place where a rule found what it looks for."""

    text: str
    node: str = ""
    device: str = ""  # a GPU or a rank
    began: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class Outcome:
    """A rule's answer. `why_not` says why a rule could not judge; else it fired if `triggered` is above 0."""

    rule: str
    about: str
    parameters: dict[str, float]
    datapoints: int = 0
    violations: int = 0
    triggered: int = 0
    summary: str = ""
    advice: str = ""
    evidence: tuple[Evidence, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    why_not: str = ""

    @property
    def fired(self) -> bool:
        """Whether the rule found what it looks for."""
        return self.triggered > 0

    @property
    def state(self) -> str:
        """One word: fired, silent, not judged."""
        return "fired" if self.fired else "not judged" if self.why_not else "silent"

    def as_original(self) -> dict[str, Any]:
        """Return the content of the service's profiler-reports/<Rule>.json."""
        details = {**self.details, "evidence": [asdict(one) for one in self.evidence]}
        if self.why_not:
            details["not_judged"] = self.why_not
        return {
            "RuleTriggered": self.triggered,
            "Violations": self.violations,
            "Details": details,
            "Datapoints": self.datapoints,
            "RuleParameters": "".join(f"{name}:{value:g}\n" for name, value in self.parameters.items()),
        }


_SHOWN_INTERVALS = 200


def intervals(times: list[float], violating: list[bool], join_s: float) -> list[tuple[float, float]]:
    """Return the spans of time in which points violate; those less than `join_s` apart are one."""
    spans: list[tuple[float, float]] = []
    for index, (time, violates) in enumerate(zip(times, violating, strict=True)):
        if not violates:
            continue
        end = times[index + 1] if index + 1 < len(times) and times[index + 1] - time <= join_s else time
        if spans and time - spans[-1][1] <= join_s:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((time, end))
    longest = sorted(spans, key=lambda span: span[0] - span[1])[:_SHOWN_INTERVALS]
    return sorted(longest)
