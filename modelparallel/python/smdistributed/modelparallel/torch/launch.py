"""Who this process is: its rank and the number of others, as Open MPI or torchrun put it in the environment."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import Mapping

from .exceptions import SMPConfigError

_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# Names of a job that every rank of an mpirun sees alike (PMIx of Open MPI 4 and 5, ORTE).
_MPI_JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
_FIRST_PORT, _PORTS = 20000, 12000


@dataclass(frozen=True)
class Launch:
    """rank of size processes, local_rank of local_size on this host; rank 0 answers at master_addr:master_port."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    master_addr: str
    master_port: int


def from_environ(environ: Mapping[str, str] | None = None) -> Launch:
    """The launch that the variables describe; without any, a job of one process.

    torchrun's come first where its agent says so: it may itself run under mpirun. Else mpirun's count, then any others
    of torch's names. Raises SMPConfigError for variables that do not fit together.
    """
    variables = os.environ if environ is None else environ
    under_torchrun = "TORCHELASTIC_RUN_ID" in variables
    for names in (_TORCH, _MPI) if under_torchrun else (_MPI, _TORCH):
        if names[0] in variables and names[1] in variables:
            return _checked(names, variables)
    return Launch(0, 1, 0, 1, *_master(variables, alone=True))


def _checked(names: tuple[str, str, str, str], variables: Mapping[str, str]) -> Launch:
    rank, size = _whole(names[0], variables), _whole(names[1], variables)
    # Without local names all ranks are taken to be on this host: true of the tools that leave them out.
    local_rank = _whole(names[2], variables, rank)
    local_size = _whole(names[3], variables, size if names[2] not in variables else max(local_rank + 1, 1))
    for name, value, limit in ((names[0], rank, size), (names[2], local_rank, local_size)):
        if value >= limit:
            raise SMPConfigError(f"{name} is {value}: it must be less than {limit}, the number of ranks")
    return Launch(rank, size, local_rank, local_size, *_master(variables, alone=local_size == size))


def _whole(name: str, variables: Mapping[str, str], default: int | None = None) -> int:
    found = variables.get(name)
    if found is None and default is not None:
        return default
    if found is None or not found.strip().isdigit():
        raise SMPConfigError(f"the environment variable {name} is {found!r}: it must be a whole number")
    return int(found)


def _master(variables: Mapping[str, str], alone: bool) -> tuple[str, int]:
    addr = variables.get("MASTER_ADDR")
    if not addr:
        if not alone:
            raise SMPConfigError(
                "MASTER_ADDR is not set and the ranks are on several hosts: export the name of rank 0's host to all"
            )
        addr = "127.0.0.1"
    if variables.get("MASTER_PORT"):
        return addr, _whole("MASTER_PORT", variables)
    return addr, _port_of_job(variables)


def _port_of_job(variables: Mapping[str, str]) -> int:
    """A port that all ranks of one mpirun agree on and two jobs hardly share; without mpirun torch's own."""
    for name in _MPI_JOB:
        if variables.get(name):
            return _FIRST_PORT + zlib.crc32(variables[name].encode()) % _PORTS
    return 29500
