"""torchrun on every host, with the first distribution host as the static rendezvous."""

from __future__ import annotations

from shoal_entrypoint.environment import MASTER_PORT
from shoal_entrypoint.launchers.settings import Settings

__all__ = ["argv"]


def argv(settings: Settings) -> list[str]:
    """The command line."""
    count = len(settings.hosts)
    command = ["torchrun", "--nnodes", str(count), "--nproc_per_node", str(settings.processes_per_host)]
    if count > 1:
        command += ["--master_addr", settings.hosts[0], "--master_port", str(MASTER_PORT)]
        command += ["--node_rank", str(settings.hosts.index(settings.current_host))]
    if settings.user_environment.get("RUN_NEURON_PARALLEL_COMPILE") == "1":
        command.insert(0, "neuron_parallel_compile")
    return [*command, *settings.program]
