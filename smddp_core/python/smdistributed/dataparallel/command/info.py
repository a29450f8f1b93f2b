"""`smddp info`: what is installed here, and what a group made here would run on."""

from __future__ import annotations

import json
import os
import platform
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from smdistributed.dataparallel import tuning
from smdistributed.dataparallel.compiled import _C
from smdistributed.dataparallel.digits import is_whole_number
from smdistributed.dataparallel.exceptions import SMDDPError, SMDDPUsageError
from smdistributed.dataparallel.rank_environment import rank_environment
from smdistributed.dataparallel.torch import torch_smddp

if TYPE_CHECKING:
    from collections.abc import Mapping

# Each rank's own, so not among those of the compiled part, which are rank 0's.
_OWN_SETTINGS = (
    "SMDDP_CPUS",
    "SMDDP_FLIGHT_RECORDER",
    "SMDDP_FLIGHT_RECORDER_DIR",
    "SMDDP_HOST_ID",
    "SMDDP_INIT_TIMEOUT",
    "SMDDP_JOB_SECRET",
    "SMDDP_JOB_SECRET_FILE",
    "SMDDP_SOCKET_IFNAME",
    "SMDDP_STATS_FILE",
    "SMDDP_TUNE_FILE",
)
_CACHES = Path("/sys/devices/system/cpu")


def as_json() -> str:
    """All facts as one JSON object."""
    return json.dumps(facts(), indent=1) + "\n"


def as_text() -> str:
    """One line a fact; lists indented under their name."""
    lines: list[str] = []
    found = facts()
    width = max(map(len, found)) + 2
    for name, value in found.items():
        if isinstance(value, dict):
            lines.append(name)
            lines += [f"  {key} = {item}" for key, item in value.items()]
        else:
            lines.append(f"{name:<{width}}{value}")
    return "\n".join(lines) + "\n"


def facts() -> dict[str, Any]:
    """Texts and numbers, or one dictionary of them, by name."""
    environment = {**os.environ, **rank_environment(os.environ)}
    ranks = {
        name: environment[name]
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
        if name in environment
    }
    measured, complaint = _measured(environment)
    shared = shutil.disk_usage("/dev/shm")
    return {
        "smddp": _C.__version__,
        "built for torch": _C.torch_version,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "installed in": str(Path(torch_smddp.__file__).parent.parent),
        "kernel": platform.release(),
        "cpu": tuning.machine()["cpu"],
        "cores": f"{len(os.sched_getaffinity(0))} allowed of {os.cpu_count()}",
        "training threads": torch.get_num_threads(),
        "communication on": torch_smddp.communication_cpus() or "any core",
        "caches": caches(),
        "/dev/shm": f"{shared.free >> 20} MiB free of {shared.total >> 20} MiB",
        "interfaces": interfaces(),
        "rank": ranks or "none: not started by a launcher",
        "settings": settings(measured),
        "tuning table": _table(complaint),
    }


def caches() -> dict[str, str]:
    """Size of each cache of the first core, and the cores that share it, as the kernel has it.

    A virtual machine may be told less than the truth; `smddp tune` measures instead.
    """
    found: dict[str, str] = {}
    for folder in sorted(_CACHES.glob("cpu0/cache/index*")):
        level, kind, size, sharers = (_word(folder / name) for name in ("level", "type", "size", "shared_cpu_list"))
        if kind != "Instruction":
            found[f"L{level}"] = f"{size}, shared by cores {sharers}"
    return found


def interfaces() -> dict[str, str]:
    """Addresses by interface; the one that other hosts are told is marked."""
    try:
        chosen = _C.address()
    except SMDDPError as error:
        return {"error": str(error)}
    return {
        f"{name} {address}": "used between hosts" if address == chosen else "not used"
        for name, address in _C.interfaces()
    }


def settings(measured: Mapping[str, str]) -> dict[str, str]:
    """Values with where each is from: the environment wins over the table, the table over the default.

    Args:
        measured: what the table has for this topology.
    """
    set_here = {name for name, value in os.environ.items() if name.startswith("SMDDP_") and value}
    known = _C.settings()
    found: dict[str, str] = {}
    for name in sorted({*known, *set_here}):
        if name not in known:
            found[name] = _own_setting(name)
        elif name in set_here:
            found[name] = f"{known[name]} (environment)"
        elif name in measured:
            found[name] = f"{measured[name]} (table)"
        else:
            found[name] = f"{known[name]} (default)"
    return found


def _own_setting(name: str) -> str:
    if name not in _OWN_SETTINGS:
        return "no such setting"  # no value either: a mistyped name may be a secret's
    value = "(not shown)" if name == "SMDDP_JOB_SECRET" else os.environ[name]
    return f"{value} (environment)"


def _measured(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """What the table has for the ranks of this environment, and what a group would complain of in it."""
    size = environment.get("WORLD_SIZE", "")
    ranks = range(int(size)) if is_whole_number(size) else range(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            key = tuning.topology_key(ranks, environment)
            found = tuning.settings_for(key, environment, _C.settings(), _C.expected_instead)
        except SMDDPUsageError as error:
            return {}, str(error)
    return found, str(caught[0].message) if caught else ""


def _table(complaint: str) -> str:
    path, named = tuning.table_path(os.environ)
    if path is None:
        return f"none (SMDDP_TUNE_FILE={tuning.NO_TABLE})"
    if not named and not tuning.exists(path):
        return f"none ({path} does not exist)"
    if complaint:
        return complaint.replace("smddp: ", "", 1)
    # A group of another shape than this environment's would complain of its own entry.
    file = tuning.title(path, os.environ)
    topologies = tuning.load(path, file)
    try:
        for key, entry in sorted(topologies.items()):
            tuning.check_settings(f"{file}: {key}", entry["settings"], _C.settings(), _C.expected_instead)
    except SMDDPUsageError as error:
        return str(error).replace("smddp: ", "", 1)
    return f"{path}: {', '.join(sorted(topologies)) or 'empty'}"


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "?"
