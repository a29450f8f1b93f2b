"""torchrun on every host, with the first host as the static rendezvous unless the job's options say more."""

from __future__ import annotations

from shoal_entrypoint.environment import MASTER_PORT
from shoal_entrypoint.launchers.settings import Settings, split_options

__all__ = ["OPTIONS", "argv", "keeps_order"]

OPTIONS = "sagemaker_torch_distributed_custom_torchrun_options"


def argv(settings: Settings) -> list[str]:
    """The command line. The user's options come after ours: torchrun takes the last of two."""
    count = len(settings.hosts)
    command = ["torchrun", "--nnodes", str(count), "--nproc_per_node", str(settings.processes_per_host)]
    if count > 1:
        command += ["--master_addr", settings.hosts[0], "--master_port", str(MASTER_PORT)]
        command += ["--node_rank", str(settings.hosts.index(settings.current_host))]
    if settings.user_environment.get("RUN_NEURON_PARALLEL_COMPILE") == "1":
        command.insert(0, "neuron_parallel_compile")
    return [*command, *split_options(settings.framework_parameters, OPTIONS), *settings.program]


def keeps_order(settings: Settings) -> bool:
    """Whether ranks are counted host by host; other rendezvous than the static one give them out as hosts come."""
    words = split_options(settings.framework_parameters, OPTIONS)
    return not any(word.startswith(("--rdzv-backend", "--rdzv_backend")) for word in words)
