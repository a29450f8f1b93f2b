"""How large a file system of FSx for Lustre must be for an epoch's data to arrive in an epoch's time. Pure functions.

Capacity is counted in units of 1.2 TiB (1200 GiB, as the FSx API has it), the smallest file system there is. Throughput
is what the service gives lastingly, without bursts. 1 MB = 10^6 bytes.
"""

import math
from dataclasses import dataclass

from shoal.advise.quantity import GB
from shoal.errors import ShoalError

UNIT_TIB = 1.2
_MB = 10**6


@dataclass(frozen=True)
class StorageType:
    """A deployment type: MB/s for each TiB, and GB of the servers' memory for each unit of 1.2 TiB."""

    mb_s_per_tib: int
    cache_gb_per_unit: float

    @property
    def unit_bytes_s(self) -> float:
        """Bytes per second of one unit."""
        return self.mb_s_per_tib * UNIT_TIB * _MB

    @property
    def unit_cache(self) -> float:
        """Bytes of one unit's cache."""
        return self.cache_gb_per_unit * GB


# AWS's pages give the memory once for each TiB and once for each 1.2 TiB: the latter, smaller reading is counted.
# 0: AWS gives no figure for the type.
TYPES = {
    "SCRATCH_2": StorageType(200, 6.7),
    "PERSISTENT_1-50": StorageType(50, 0),
    "PERSISTENT_1-100": StorageType(100, 0),
    "PERSISTENT_1-200": StorageType(200, 0),
    "PERSISTENT_2-125": StorageType(125, 3.4),
    "PERSISTENT_2-250": StorageType(250, 6.8),
    "PERSISTENT_2-500": StorageType(500, 13.7),
    "PERSISTENT_2-1000": StorageType(1000, 27.3),
}


@dataclass(frozen=True)
class FileSystem:
    """What a file system of `units` does for a dataset that is read once in each epoch. Bytes and seconds."""

    units: int
    bytes_s: float
    cache: float
    first_epoch_s: float  # nothing is in the cache yet
    later_bytes_s: float  # from the disks, while the cache serves what it holds
    suffices: bool  # from the second epoch on

    @property
    def tib(self) -> float:
        """Capacity."""
        return self.units * UNIT_TIB


@dataclass(frozen=True)
class FsxPlan:
    """The need, and the two smallest file systems that meet it."""

    need_bytes_s: float
    from_disk: FileSystem  # in every epoch
    with_cache: FileSystem  # from the second epoch on


def assess(kind: StorageType, units: int, dataset: int, epoch_s: float) -> FileSystem:
    """Return what `units` of 1.2 TiB do for `dataset` bytes in epochs of `epoch_s` seconds."""
    rate, cache = units * kind.unit_bytes_s, units * kind.unit_cache
    later = max(0.0, dataset - cache) / epoch_s
    return FileSystem(units, rate, cache, dataset / rate, later, later <= rate)


def fsx_plan(kind: StorageType, dataset: int, epoch_s: float) -> FsxPlan:
    """Return the need of `dataset` bytes in epochs of `epoch_s` seconds, and file systems that meet it and hold it."""
    need = dataset / epoch_s
    holds = dataset / (UNIT_TIB * 1024**4)
    from_disk = valid_units(max(need / kind.unit_bytes_s, holds))
    # rate * units * epoch_s + cache * units >= dataset
    with_cache = valid_units(max(dataset / (kind.unit_bytes_s * epoch_s + kind.unit_cache), holds))
    return FsxPlan(need, assess(kind, from_disk, dataset, epoch_s), assess(kind, with_cache, dataset, epoch_s))


def valid_units(least: float) -> int:
    """Return the smallest capacity FSx sells that is at least so many units: 1, 2, then every second number."""
    units = max(1, math.ceil(least - 1e-9))
    return units if units == 1 else units + units % 2


def type_of(name: str) -> StorageType:
    """Return a deployment type by its name.

    Raises:
        ShoalError: there is no such type.
    """
    kind = TYPES.get(name.upper())
    if kind is None:
        raise ShoalError(f"--storage: {name!r} is not one of {', '.join(TYPES)}")
    return kind
