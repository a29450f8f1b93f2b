"""What the kernel counts for this container: processor time, memory and I/O against its limits. cgroup v2 and v1."""

from __future__ import annotations

import os

from shoal_entrypoint.devices import cgroup_cpu_limit
from shoal_entrypoint.profile.machine import Rates

__all__ = ["Group"]

_ROOT = "/sys/fs/cgroup"
_PRESSURES = ("cpu", "io", "memory")


class Group:
    """The control group of this process. What the kernel does not tell is left out."""

    def __init__(self, root: str = _ROOT, own: str | None = None) -> None:
        from pathlib import Path

        own = _text("/proc/self/cgroup") or "" if own is None else own
        self._version2 = os.path.exists(os.path.join(root, "cgroup.controllers"))
        self._root, self._paths = root, _paths(own)
        limit = cgroup_cpu_limit(Path(root), own)
        allowed = len(os.sched_getaffinity(0))
        self.cores = float(allowed if limit is None else min(limit, allowed))
        self._rates = Rates()

    def sample(self, now: float) -> list[tuple[str, str, str, float]]:
        """Return the percentages and rates."""
        values: list[tuple[str, str, str, float]] = [("process", "cores", "Count", self.cores)]
        used = self._memory()
        if used is not None:
            values.append(("memory", "MemoryUsedPercent", "", used))
        for name, rate in self._rates.of(self._counters(), now).items():
            if name == "cpu":
                values.append(("container", "CPUOfLimit", "Percentage", min(100.0, 100 * rate / self.cores)))
            elif name in _PRESSURES_OF:
                values.append(("pressure", _PRESSURES_OF[name], "SomePercentage", min(100.0, rate / 1e4)))  # of us
            else:
                values.append(("i/o", name, "", rate))
        return values

    def _counters(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._version2:
            usage = _fields(self._read("", "cpu.stat")).get("usage_usec")
            seconds = None if usage is None else usage / 1e6
        else:
            text = self._read("cpuacct", "cpuacct.usage")
            seconds = int(text) / 1e9 if text else None
        if seconds is not None:
            found["cpu"] = seconds
        found.update(self._bytes())
        for name, what in _PRESSURES_OF.items():
            text = self._read("", f"{what}.pressure") if self._version2 else None
            if text and "total=" in text:
                found[name] = int(text.partition("total=")[2].split()[0])
        return found

    def _bytes(self) -> dict[str, float]:
        """Bytes and operations at block devices; network file systems do not show here."""
        read = written = operations = 0
        if self._version2:
            text = self._read("", "io.stat")
            for line in (text or "").splitlines():
                pairs = dict(word.split("=") for word in line.split()[1:] if "=" in word)
                read, written = read + int(pairs.get("rbytes", 0)), written + int(pairs.get("wbytes", 0))
                operations += int(pairs.get("rios", 0)) + int(pairs.get("wios", 0))
        else:
            text = self._read("blkio", "blkio.throttle.io_service_bytes")
            read, written = _sum(text, "Read"), _sum(text, "Write")
            counts = self._read("blkio", "blkio.throttle.io_serviced")
            operations = _sum(counts, "Read") + _sum(counts, "Write")
        if text is None:
            return {}
        return {"ReadThroughputInBytesPerSecond": read, "WriteThroughputInBytesPerSecond": written, "IOPS": operations}

    def _memory(self) -> float | None:
        """Percent of what this container may use; the page cache that can go at once is not used."""
        if self._version2:
            now, most = self._read("", "memory.current"), self._read("", "memory.max")
            cache = _fields(self._read("", "memory.stat")).get("inactive_file", 0)
        else:
            now, most = self._read("memory", "memory.usage_in_bytes"), self._read("memory", "memory.limit_in_bytes")
            cache = _fields(self._read("memory", "memory.stat")).get("total_inactive_file", 0)
        machine = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo")[:5]}
        total = machine["MemTotal"]
        limit = int(most) if most and most.strip().isdigit() else total
        if now is None or limit >= total:
            return 100 * (1 - machine.get("MemAvailable", machine["MemFree"]) / total)
        return min(100.0, 100 * max(0, int(now) - cache) / limit)

    def _read(self, controller: str, name: str) -> str | None:
        own = self._paths.get(controller, "/").strip("/")
        # Without a namespace of its own, a group lies below the mount; in a container it is mostly the mount itself.
        for folder in (own, ""):
            text = _text(os.path.join(self._root, controller, folder, name))
            if text is not None:
                return text
        return None


_PRESSURES_OF = {f"pressure {name}": name for name in _PRESSURES}


def _paths(own: str) -> dict[str, str]:
    found = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _text(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


def _lines(path: str) -> list[str]:
    return (_text(path) or "").splitlines()


def _fields(text: str | None) -> dict[str, int]:
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _sum(text: str | None, what: str) -> int:
    words = (line.split() for line in (text or "").splitlines())
    return sum(int(word[2]) for word in words if len(word) == 3 and word[1] == what)
