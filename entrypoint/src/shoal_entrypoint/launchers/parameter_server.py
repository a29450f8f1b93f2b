"""Servers and workers: every host starts the script once for each of its roles, and tells each process all addresses.

Servers have the first ranks, as scripts with torch.distributed.rpc expect: rank 0 is a server on the first host, which
is where ranks meet. Pure functions only.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from shoal_entrypoint.launchers.settings import Settings, count_parameter

__all__ = ["COUNT", "Member", "members"]

COUNT = "sagemaker_parameter_server_count"
SERVER, WORKER = "ps", "worker"
# TensorFlow's customary ports. `train` does not listen there: they are for scripts that want one of their own.
_FIRST_PORT = 2222


class Member(NamedTuple):
    """One process of a job with parameter servers."""

    role: str
    role_rank: int  # within its role
    rank: int  # among all
    host: str
    local_rank: int

    @property
    def is_server(self) -> bool:
        """Whether it ends when all workers have ended."""
        return self.role == SERVER

    @property
    def address(self) -> str:
        """Its host, and a port that no other process of the job is told to use."""
        return f"{self.host}:{_FIRST_PORT + self.local_rank}"


def members(settings: Settings) -> list[Member]:
    """Every process of the job, by rank. Local ranks count workers first, so that theirs are numbers of GPUs."""
    hosts, workers = settings.hosts, settings.processes_per_host
    servers = count_parameter(settings.framework_parameters, COUNT) or 1
    count = len(hosts)
    found = [Member(SERVER, index, index, hosts[index % count], workers + index // count) for index in range(servers)]
    for index in range(workers * count):
        found.append(Member(WORKER, index, servers + index, hosts[index // workers], index % workers))
    return found


def environments(settings: Settings, here: str) -> dict[Member, dict[str, str]]:
    """The processes of the host `here`, and what each is told besides what all of the host are told."""
    everybody = members(settings)
    mine = [member for member in everybody if member.host == here]
    addresses = {role: [one.address for one in everybody if one.role == role] for role in (SERVER, WORKER)}
    return {
        member: {
            "RANK": str(member.rank),
            "WORLD_SIZE": str(len(everybody)),
            "LOCAL_RANK": str(member.local_rank),
            "LOCAL_WORLD_SIZE": str(len(mine)),
            "ROLE_NAME": member.role,
            "ROLE_RANK": str(member.role_rank),
            "ROLE_WORLD_SIZE": str(len(addresses[member.role])),
            "PS_HOSTS": ",".join(addresses[SERVER]),
            "WORKER_HOSTS": ",".join(addresses[WORKER]),
            "TF_CONFIG": json.dumps(
                {
                    "cluster": addresses,
                    "task": {"type": member.role, "index": member.role_rank},
                    "environment": "cloud",
                }
            ),
        }
        for member in mine
    }
