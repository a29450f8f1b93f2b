"""torchrun on every host, with the first host as the static rendezvous unless the job's options say more."""

from __future__ import annotations

import shutil
from pathlib import Path

from shoal_entrypoint.environment import MASTER_PORT
from shoal_entrypoint.launchers.settings import Settings, split_options

__all__ = ["OPTIONS", "argv", "keeps_order", "quick_start"]

_STARTER = Path(__file__).resolve().parent.parent / "torchrun_start.py"
_LONGEST_SCRIPT = 4096
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


def quick_start(command: list[str], path: str | None) -> list[str]:
    """What starts `command` in less time (torchrun_start.py), if it is torch's own torchrun; else `command` itself."""
    script = shutil.which(command[0], path=path) if command[0] == "torchrun" else None
    try:
        text = Path(script).read_bytes()[:_LONGEST_SCRIPT] if script else b""
    except OSError:
        text = b""
    first, _, rest = text.partition(b"\n")
    words = first[2:].decode(errors="replace").split()
    if (
        not first.startswith(b"#!")
        or b"torch.distributed.run" not in rest
        or len(words) != 1
        or "python" not in words[0]
    ):
        return command
    return [words[0], str(_STARTER), str(script), *command[1:]]
