"""What the container may use of its machine: CPUs, memory, limits; who runs here, on which kernel."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import Mapping

from shoal_entrypoint import devices
from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row, size

__all__ = ["cpus", "kernel", "limits", "memory", "memory_limit", "soft_limits", "user"]

_CGROUP = Path("/sys/fs/cgroup")
# Version 1 writes "no limit" as the largest number of whole pages.
_NO_LIMIT = 1 << 60
_LEAST_MEMORY = 256 << 20  # importing torch alone takes as much
_LITTLE_MEMORY = 1 << 30
_FEW_FILES, _VERY_FEW_FILES = 4096, 256
_FEW_PROCESSES = 1024
_SMALL_STACK = 1 << 20
_LOCKED_MEMORY = 1 << 30
_UNLIMITED = resource.RLIM_INFINITY
_NAMES = {"nofile": "RLIMIT_NOFILE", "memlock": "RLIMIT_MEMLOCK", "nproc": "RLIMIT_NPROC", "stack": "RLIMIT_STACK"}


def cpus(allowed: int, cgroup: Path = _CGROUP, processes: int = 1) -> Row:
    """CPUs against the processes that share them."""
    machine = os.cpu_count() or allowed
    quota = devices.cgroup_cpu_limit(cgroup)
    text = f"{allowed} of the machine's {machine}" + (f" (cgroup: {quota:g})" if quota is not None else "")
    values = {"allowed": allowed, "machine": machine, "cgroup_limit": quota}
    if processes > allowed:
        advice = "Give the container more CPUs (docker run --cpus), or start fewer processes: they take turns."
        return Row("cpus", NOTE, f"{text}, for {processes} processes", advice, values)
    return Row("cpus", OK, text, "", values)


def memory(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo"), processes: int = 1) -> list[Row]:
    """Memory that is left: the machine's, or the container's where that is less."""
    machine = _meminfo(meminfo)
    limit, used = memory_limit(cgroup)
    total, free = machine.get("MemTotal", 0), machine.get("MemAvailable", 0)
    if limit is not None and limit < total:
        total, free = limit, min(free, max(0, limit - (used or 0)))
        text = f"{size(free)} free of {size(total)} (the container's limit)"
    else:
        text = f"{size(free)} free of {size(total)}"
    values = {"total_bytes": total, "free_bytes": free, "cgroup_limit_bytes": limit}
    rows = [Row("memory", OK, text, "", values)]
    if free < _LEAST_MEMORY * processes:
        advice = "Give the container more memory (docker run --memory), or start fewer processes."
        rows = [Row("memory", PROBLEM, f"{text}: too little for torch in {processes} process(es)", advice, values)]
    elif free < _LITTLE_MEMORY * processes:
        advice = "A process that takes more than there is gets killed (exit code 137)."
        rows = [Row("memory", NOTE, f"{text}, for {processes} process(es)", advice, values)]
    kills = _events(cgroup).get("oom_kill", 0)
    if kills:
        text = f"{kills} process(es) of this container have been killed because its memory was full"
        rows.append(Row("memory", NOTE, text, "Give the container more memory.", {"oom_kills": kills}))
    return rows


def memory_limit(cgroup: Path) -> tuple[int | None, int | None]:
    """(limit, use) in bytes (v2: memory.max, v1: memory/memory.limit_in_bytes); None: there is none."""
    v1 = cgroup / "memory"
    for limit, use in (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (v1 / "memory.limit_in_bytes", v1 / "memory.usage_in_bytes"),
    ):
        bound = _number(limit)
        if bound is not None and bound < _NO_LIMIT:
            return bound, _number(use)
    return None, None


def soft_limits() -> dict[str, int]:
    """The soft limits that training runs into, in the units of getrlimit; -1: none."""
    found = {name: resource.getrlimit(getattr(resource, constant))[0] for name, constant in _NAMES.items()}
    return {name: -1 if value == _UNLIMITED else value for name, value in found.items()}


def limits(values: Mapping[str, int], rdma: bool, root: bool) -> list[Row]:
    """Ulimits against what data loaders, threads and RDMA want; `rdma`: an EFA or InfiniBand device is there."""
    rows: list[Row] = []

    def add(state: str, text: str, advice: str) -> None:
        rows.append(Row("limits", state, text, advice, values))

    if _below(values["nofile"], _FEW_FILES):
        state = PROBLEM if _below(values["nofile"], _VERY_FEW_FILES) else NOTE
        add(state, f"nofile {values['nofile']}: few files at a time", _ulimit("nofile=65536:65536", "data loaders"))
    if rdma and _below(values["memlock"], _LOCKED_MEMORY):
        add(PROBLEM, f"memlock {size(values['memlock'])}", _ulimit("memlock=-1:-1", "EFA and InfiniBand lock memory"))
    if not root and _below(values["nproc"], _FEW_PROCESSES):  # the kernel does not hold root to it
        add(NOTE, f"nproc {values['nproc']}: few processes and threads", _ulimit("nproc=65536:65536", "threads"))
    if _below(values["stack"], _SMALL_STACK):
        add(NOTE, f"stack {size(values['stack'])}", _ulimit("stack=8388608", "deep calls crash without a message"))
    shown = (f"{name} {'unlimited' if value < 0 else _shown(name, value)}" for name, value in values.items())
    return rows or [Row("limits", OK, ", ".join(shown), "", values)]


def user() -> Row:
    """Who runs the job."""
    import pwd

    uid, gid = os.getuid(), os.getgid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = "no name"
    return Row("user", OK, f"{name}, uid {uid}, gid {gid}", "", {"uid": uid, "gid": gid, "name": name})


def kernel() -> Row:
    """The kernel, which the container shares with its machine."""
    system = platform.uname()
    text = f"{system.system} {system.release}, {system.machine}"
    return Row("kernel", OK, text, "", {"release": system.release, "machine": system.machine})


def _below(value: int, least: int) -> bool:
    return 0 <= value < least


def _shown(name: str, value: int) -> str:
    return size(value) if name in ("memlock", "stack") else str(value)


def _ulimit(setting: str, reason: str) -> str:
    return f"docker run --ulimit {setting} ({reason})."


def _meminfo(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in _lines(path):
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _events(cgroup: Path) -> dict[str, int]:
    pairs = (line.split() for line in _lines(cgroup / "memory.events"))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
