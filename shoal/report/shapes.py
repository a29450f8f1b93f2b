"""What plots are drawn of: plain values, which another process can be given."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A curve: minutes since the run began, and values."""

    label: str
    minutes: list[float]
    values: list[float]


@dataclass(frozen=True)
class Timeline:
    """What one host did."""

    node: str
    shares: list[Line]  # percent
    rates: list[Line]  # bytes per second
    fired: list[tuple[str, float, float]]  # rule, from, to


@dataclass(frozen=True)
class Heat:
    """How late each rank was: a row a rank, a column a slice of time; None where it marked no step."""

    ranks: list[str]
    minutes: float
    values: list[list[float | None]]
