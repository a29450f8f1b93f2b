"""What each host of a local run may use at most, so that one machine behaves like several smaller ones."""

import re
from dataclasses import dataclass
from typing import Any

from shoal.errors import ShoalError

_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_LEAST_MEMORY = 6 * 1024**2  # the engine's
_MOST_MEMORY = 1024**5  # the engine counts with 63 bits
_LEAST_RATE, _MOST_RATE = 8_000, 10**12  # bits a second; tc counts the bytes of a burst with 32 bits


@dataclass(frozen=True)
class Limits:
    """Limits of every host; None: none."""

    cpus: float | None = None  # cores
    memory: int | None = None  # bytes; swap included
    link_rate: int | None = None  # bits a second that a host sends

    def container_options(self) -> dict[str, Any]:
        """Return what the engine is told: it sets the cgroup of the container."""
        options: dict[str, Any] = {}
        if self.cpus is not None:
            options["nano_cpus"] = round(self.cpus * 1e9)
        if self.memory is not None:
            options["mem_limit"] = options["memswap_limit"] = self.memory
        return options


NO_LIMITS = Limits()


def cpus(text: str, available: int) -> float:
    """Return a number of cores.

    Raises:
        ShoalError: it is none, or more than this machine has.
    """
    try:
        count = float(text)
    except ValueError:
        count = -1.0
    if not 0.01 <= count <= available:
        raise ShoalError(f"--host-cpus {text!r}: a number from 0.01 to {available}, this machine's cores, is allowed")
    return count


def memory(text: str) -> int:
    """Return a number of bytes, from `512m` and the like.

    Raises:
        ShoalError: it is none, or less or more than the engine takes.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", text.lower())
    size = float(match[1]) * _BYTES[match[2]] if match else 0
    if not _LEAST_MEMORY <= size <= _MOST_MEMORY:
        raise ShoalError(f"--host-memory {text!r}: a size such as 512m or 4g is allowed, at least 6m, at most 1024t")
    return int(size)


def link_rate(text: str) -> int:
    """Return bits a second, from `100mbit` and the like.

    Raises:
        ShoalError: it is none, less than 8 kbit or more than 1000 Gbit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", text.lower())
    rate = float(match[1]) * _BITS[match[2]] if match else 0
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise ShoalError(
            f"--link-rate {text!r}: a rate such as 100mbit or 1gbit is allowed, at least 8kbit, at most 1000gbit"
        )
    return int(rate)
