"""What this host has: allowed CPUs, GPUs, Neuron cores, EFA. Probed once per job, with at most two helper processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Mapping, NamedTuple

__all__ = ["Devices", "allowed_cpus", "cgroup_cpu_limit", "efa_devices", "probe"]

_PROBE_TIMEOUT_SECONDS = 60
_TRN2_CORES = 64  # neuron-ls reports physical cores there, jobs get logical ones


class Devices(NamedTuple):
    """Counts of what ranks can use."""

    cpus: int
    gpus: int
    neurons: int
    efa: bool
    infiniband: bool


def probe(instance_type: str, environ: Mapping[str, str]) -> Devices:
    """Look at this host."""
    efa, other = efa_devices(Path("/sys/class/infiniband"))
    forced = environ.get("SHOAL_EFA")
    return Devices(
        cpus=allowed_cpus(Path("/sys/fs/cgroup")),
        gpus=_gpus(),
        neurons=_TRN2_CORES if "trn2.48xlarge" in instance_type else _neurons(),
        efa=efa if forced is None else forced == "1",
        infiniband=other,
    )


def allowed_cpus(cgroup: Path) -> int:
    """CPUs this container may use: its affinity mask, bounded by the quotas of its cgroup and of those around it."""
    count = len(os.sched_getaffinity(0))
    try:
        own = Path("/proc/self/cgroup").read_text()
    except OSError:
        own = ""
    limit = cgroup_cpu_limit(cgroup, own)
    return count if limit is None else max(1, min(count, int(limit)))


def cgroup_cpu_limit(cgroup: Path, own: str = "") -> float | None:
    """The lowest CPU quota, in CPUs, that binds a process whose /proc/self/cgroup is `own`; None when there is none.

    In a container, the root of what is mounted is mostly the container's own group; elsewhere (Slurm, a nested
    container that shares the host's view) it lies deeper, and every group above it binds as well.
    """
    groups = {cgroup: "/", cgroup / "cpu": "/", cgroup / "cpu,cpuacct": "/"}
    for line in own.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        roots = [cgroup] if not controllers else [cgroup / "cpu", cgroup / "cpu,cpuacct"]
        if not controllers or "cpu" in controllers.split(","):
            groups.update(dict.fromkeys(roots, path))
    limits = [_quota(folder) for root, path in groups.items() for folder in _upwards(root, path)]
    return min((limit for limit in limits if limit is not None), default=None)


def _upwards(root: Path, path: str) -> list[Path]:
    """A group's folder and all above it, some of which the mount may not show."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _quota(folder: Path) -> float | None:
    """One group's quota (v2: cpu.max, v1: cpu.cfs_*_us)."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
    except ValueError:  # "max"
        return None


def efa_devices(root: Path) -> tuple[bool, bool]:
    """(an EFA device exists, another InfiniBand device exists). Names vary (efa_0, rdmap0s6); drivers do not."""
    efa = other = False
    for device in sorted(root.glob("*")):
        driver = device / "device" / "driver"
        name = driver.resolve().name if driver.exists() else device.name
        if name.startswith("efa"):
            efa = True
        else:
            other = True
    return efa, other


def _gpus() -> int:
    # Device files answer in microseconds; nvidia-smi can take a second and is asked only without them.
    nodes = [node for node in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", node)]
    if nodes:
        return len(nodes)
    lines = _output(["nvidia-smi", "--list-gpus"]).splitlines()
    return sum(line.startswith("GPU ") for line in lines)


def _neurons() -> int:
    text = _output(["neuron-ls", "-j"])
    try:
        return sum(int(device.get("nc_count", 0)) for device in json.loads(text)) if text else 0
    except (ValueError, AttributeError, TypeError):
        return 0


def _output(argv: list[str]) -> str:
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PROBE_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
