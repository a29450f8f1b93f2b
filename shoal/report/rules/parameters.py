"""The parameters of each rule with the defaults of the service's own rules, and how a job changes them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from shoal.errors import ShoalError

PATIENCE = 1000.0  # values before a rule says anything: 8.3 minutes at two a second


@dataclass(frozen=True)
class Parameters:
    """The base of all: numbers with names."""

    def numbers(self) -> dict[str, float]:
        """Return them by name."""
        return asdict(self)

    def changed(self, rule: str, given: Mapping[str, str]) -> Self:
        """Return them with some replaced.

        Raises:
            ShoalError: a name or a value is none of this rule's.
        """
        names = [field.name for field in fields(self)]
        numbers: dict[str, Any] = {}
        for name, text in given.items():
            if name not in names:
                raise ShoalError(f"{rule}: no parameter {name!r}: it has {', '.join(names) or 'none'}")
            try:
                numbers[name] = float(text)
            except ValueError as error:
                raise ShoalError(f"{rule}: {name}: {text!r}: a number was expected") from error
            if not 0 <= numbers[name] < float("inf"):
                raise ShoalError(f"{rule}: {name}: {text!r}: a number of at least 0 was expected")
        return replace(self, **numbers)


@dataclass(frozen=True)
class CPUBottleneck(Parameters):
    """Shares in percent. `core_share` is ours: one hot core of 96 is no bottleneck."""

    threshold: float = 50
    gpu_threshold: float = 10
    cpu_threshold: float = 90
    core_share: float = 50
    patience: float = PATIENCE


@dataclass(frozen=True)
class IOBottleneck(Parameters):
    """Shares in percent."""

    threshold: float = 50
    gpu_threshold: float = 10
    io_threshold: float = 50
    patience: float = PATIENCE


@dataclass(frozen=True)
class LowGPUUtilization(Parameters):
    """Percentiles of `window` values."""

    threshold_p95: float = 70
    threshold_p5: float = 10
    window: float = 500
    patience: float = PATIENCE


@dataclass(frozen=True)
class BatchSize(Parameters):
    """Percentiles of `window` values."""

    cpu_threshold_p95: float = 70
    gpu_threshold_p95: float = 70
    gpu_memory_threshold_p95: float = 70
    window: float = 500
    patience: float = PATIENCE


@dataclass(frozen=True)
class LoadBalancing(Parameters):
    """A Jensen-Shannon distance: 0 alike, 0.83 nothing in common."""

    threshold: float = 0.5
    patience: float = PATIENCE


@dataclass(frozen=True)
class GPUMemoryIncrease(Parameters):
    """Points of percent between two windows."""

    increase: float = 5
    window: float = 10
    patience: float = PATIENCE


@dataclass(frozen=True)
class MaxInitializationTime(Parameters):
    """Minutes."""

    threshold: float = 20


@dataclass(frozen=True)
class StepOutlier(Parameters):
    """Standard deviations, and how many steps beyond them."""

    stddev: float = 3
    n_outliers: float = 10


@dataclass(frozen=True)
class Dataloader(Parameters):
    """Loader processes in percent of the cores."""

    min_threshold: float = 70
    max_threshold: float = 200
    patience: float = 10


@dataclass(frozen=True)
class DataLoadingBound(Parameters):
    """Percent of the step's time."""

    threshold: float = 20
    patience: float = 20


@dataclass(frozen=True)
class CommunicationBound(Parameters):
    """Percent of the step's time."""

    threshold: float = 30
    patience: float = 20


@dataclass(frozen=True)
class StragglerRank(Parameters):
    """`late`: percent of the median step; `share`: percent of the steps in which the rank is so late."""

    late: float = 10
    share: float = 50
    patience: float = 20


@dataclass(frozen=True)
class StorageThroughput(Parameters):
    """`wait`: percent of the step's time; `floor`: bytes/s of all hosts, below which storage is not what limits."""

    wait: float = 20
    floor: float = 10e6
    patience: float = 20


@dataclass(frozen=True)
class NoParameters(Parameters):
    """Of rules that have none."""
