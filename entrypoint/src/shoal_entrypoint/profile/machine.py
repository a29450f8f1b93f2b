"""What the kernel counts for the whole machine: the cores this host may use, and its network."""

from __future__ import annotations

import os

__all__ = ["Cores", "Network", "Rates"]


class Rates:
    """Counters -> what they have grown by a second; nothing the first time, and nothing for one that went back."""

    def __init__(self) -> None:
        self._then = 0.0
        self._before: dict[str, float] = {}

    def of(self, counters: dict[str, float], now: float) -> dict[str, float]:
        """Return the growth of each counter that was there before."""
        seconds, before = now - self._then, self._before
        self._then, self._before = now, counters
        if not before or seconds <= 0:
            return {}
        return {
            name: (value - before[name]) / seconds
            for name, value in counters.items()
            if name in before and value >= before[name]
        }


class Cores:
    """Percent busy (waiting for I/O counts as busy, as in the service's files) and percent waiting, for each core."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int, int]] = {}

    def sample(self, _now: float) -> list[tuple[str, str, str, float]]:
        """Return both for each core that this process may use."""
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        values: list[tuple[str, str, str, float]] = []
        for name, (total, idle, iowait) in self._read(allowed).items():
            before = self._before.get(name)
            self._before[name] = (total, idle, iowait)
            if before is None or total <= before[0]:
                continue
            span = total - before[0]
            # A counter of idle time may go back by a tick.
            values.append(("cpu", name, "CPUUtilization", 100 * (1 - min(1, max(0, idle - before[1]) / span))))
            values.append(("cpu", name, "I/OWaitPercentage", 100 * min(1, max(0, iowait - before[2]) / span)))
        return values

    @staticmethod
    def _read(allowed: set[str]) -> dict[str, tuple[int, int, int]]:
        found = {}
        with open("/proc/stat", "rb") as file:
            for line in file:
                if not line.startswith(b"cpu"):
                    break  # what follows is long on large machines
                name, *fields = line.split()
                if name.decode() in allowed:
                    ticks = [int(field) for field in fields[:8]]  # guest time is in user time already
                    found[name.decode()] = (sum(ticks), ticks[3], ticks[4])
        return found


class Network:
    """Bytes per second of all interfaces but the loop."""

    def __init__(self) -> None:
        self._rates = Rates()

    def sample(self, now: float) -> list[tuple[str, str, str, float]]:
        """Return what came and went."""
        received = sent = 0
        with open("/proc/net/dev", "rb") as file:
            for line in file.readlines()[2:]:
                name, _, counters = line.partition(b":")
                fields = counters.split()
                if name.strip() != b"lo":
                    received, sent = received + int(fields[0]), sent + int(fields[8])
        grown = self._rates.of({"ReceiveBytesPerSecond": received, "TransmitBytesPerSecond": sent}, now)
        return [("network", name, "Algorithm", rate) for name, rate in grown.items()]
