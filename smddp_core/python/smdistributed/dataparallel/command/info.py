"""`smddp info`: what is installed here, and what a group made here would run on."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import torch

from smdistributed.dataparallel import _C, tuning
from smdistributed.dataparallel.exceptions import SMDDPError
from smdistributed.dataparallel.rank_environment import rank_environment
from smdistributed.dataparallel.torch import torch_smddp

_CACHES = Path("/sys/devices/system/cpu")


def as_json() -> str:
    """All facts as one JSON object."""
    return json.dumps(facts(), indent=1) + "\n"


def as_text() -> str:
    """One line a fact; lists indented under their name."""
    lines: list[str] = []
    for name, value in facts().items():
        if isinstance(value, dict):
            lines.append(name)
            lines += [f"  {key} = {item}" for key, item in value.items()]
        else:
            lines.append(f"{name:<16}{value}")
    return "\n".join(lines) + "\n"


def facts() -> dict[str, Any]:
    """Texts and numbers, or one dictionary of them, by name."""
    environment = {**os.environ, **rank_environment(os.environ)}
    ranks = {
        name: environment[name]
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
        if name in environment
    }
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
        "settings": {name: f"{value} ({_origin(name)})" for name, value in _C.settings().items()},
        "tuning table": _table(),
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


def _origin(name: str) -> str:
    return "environment" if os.environ.get(name) else "default"


def _table() -> str:
    path, named = tuning.table_path(os.environ)
    if not named and not path.exists():
        return f"none ({path} does not exist)"
    try:
        return f"{path}: {', '.join(sorted(tuning.load(path))) or 'empty'}"
    except SMDDPError as error:
        return str(error)


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "?"
