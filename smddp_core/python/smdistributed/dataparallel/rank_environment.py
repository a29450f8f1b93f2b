"""The rank environment: who am I among the ranks, in the variables that torch.distributed reads.

Launchers say it in variables of their own. This translates them; it starts no processes and imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from smdistributed.dataparallel.digits import is_whole_number

DEFAULT_MASTER_PORT = "7777"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class _Launcher:
    """Variables in which a launcher gives the rank; ``""`` where it has none."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    host: str


# Slurm's batch script itself has SLURM_PROCID, but only tasks of a step (srun) have SLURM_STEP_NUM_TASKS.
_LAUNCHERS = (
    _Launcher(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", ""
    ),
    _Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),
    _Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
)


def rank_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What has to be added to ``environ`` for a rank to find its job; the result never contradicts what is set.

    ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``, ``MASTER_ADDR`` and
    ``MASTER_PORT`` are filled in from Open MPI's, MPICH's, Intel MPI's or Slurm's variables, as far as they are known.
    A process that nobody launched gets none of them. ``SMDATAPARALLEL_LOCAL_RANK`` is always given, and follows
    ``LOCAL_RANK``.
    """
    known = {name: value for name, value in environ.items() if value}
    added: dict[str, str] = {}

    def fill(name: str, value: str | None) -> None:
        if value and name not in known:
            added[name] = known[name] = value

    launcher = next((entry for entry in _LAUNCHERS if entry.rank in known and entry.size in known), None)
    if launcher and known.get("RANK", known[launcher.rank]) == known[launcher.rank]:
        fill("RANK", known[launcher.rank])
        fill("WORLD_SIZE", known[launcher.size])
        fill("LOCAL_RANK", known.get(launcher.local_rank))
        fill("LOCAL_WORLD_SIZE", known.get(launcher.local_size) or _slurm_local_size(known))
        fill("GROUP_RANK", known.get(launcher.host))
    if "RANK" in known and "WORLD_SIZE" in known:
        _fill_single_host(known, fill)
        fill("GROUP_RANK", _host_index(known))
        fill("MASTER_ADDR", _master_address(known))
        fill("MASTER_PORT", known.get("SMDATAPARALLEL_SERVER_PORT") or known.get("SM_MASTER_PORT"))
        fill("MASTER_PORT", DEFAULT_MASTER_PORT)
    local_rank = known.get("LOCAL_RANK", "0")
    if environ.get("SMDATAPARALLEL_LOCAL_RANK") != local_rank:
        added["SMDATAPARALLEL_LOCAL_RANK"] = local_rank
    return added


def _fill_single_host(known: Mapping[str, str], fill: Callable[[str, str | None], None]) -> None:
    """Ranks and local ranks are the same thing where the master is this very machine, or there is only one rank."""
    if known["WORLD_SIZE"] == "1" or known.get("MASTER_ADDR") in ("localhost", _LOOPBACK, "::1"):
        fill("LOCAL_RANK", known["RANK"])
        fill("LOCAL_WORLD_SIZE", known["WORLD_SIZE"])


def _host_index(known: Mapping[str, str]) -> str | None:
    """Launchers fill hosts one after another (Open MPI's default), so equal hosts give the index by division."""
    try:
        rank, size, local_size = (int(known[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    except (KeyError, ValueError):
        return None
    return str(rank // local_size) if local_size > 0 and size % local_size == 0 else None


def _master_address(known: Mapping[str, str]) -> str | None:
    named = known.get("SMDATAPARALLEL_SERVER_ADDR") or known.get("SM_MASTER_ADDR")
    if named:
        return named
    if known["WORLD_SIZE"] == known.get("LOCAL_WORLD_SIZE"):
        return _LOOPBACK
    return _first_host(known.get("SLURM_STEP_NODELIST", ""))


def _slurm_local_size(known: Mapping[str, str]) -> str | None:
    """Tasks on this host out of ``SLURM_STEP_TASKS_PER_NODE``: ``2(x3),1`` is 2, 2, 2, 1."""
    counts: list[str] = []
    for item in known.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if match:
            counts += [match[1]] * int(match[2] or 1)
    host = known.get("SLURM_NODEID", "")
    return counts[int(host)] if is_whole_number(host) and int(host) < len(counts) else None


def _first_host(nodes: str) -> str | None:
    """The first of a Slurm host list: ``node[03-05,9],other`` is ``node03``."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", nodes)
    return match[1] + (match[2] or "") if match else None
