"""torch_xla's own launcher on every host, for images that still have it: one process per GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from shoal_entrypoint.code import Entry, Kind
from shoal_entrypoint.devices import Devices
from shoal_entrypoint.launchers.settings import Settings
from shoal_entrypoint.outcome import JobError

__all__ = ["FLAG", "argv", "environment", "require"]

FLAG = "sagemaker_pytorch_xla_multi_worker_enabled"
_WORKER_PORT = 43857
_MESH_PORT = 53957


def require() -> None:
    """Refuse the job where torch_xla's launcher is not installed. Nothing is imported: torch would come with it."""
    found = importlib.util.find_spec("torch_xla")
    folders = found.submodule_search_locations if found is not None else None
    if not any((Path(folder) / "distributed" / "xla_spawn.py").is_file() for folder in folders or ()):
        raise JobError(
            f"{FLAG}: this image has no torch_xla: PyTorch/XLA on GPUs and its training compiler have ended;"
            " use torch_distributed, and torch.compile(model) in the script"
        )


def check(entry: Entry, devices: Devices) -> None:
    """What torch_xla's launcher cannot start, and where."""
    if entry.kind != Kind.PROGRAM:
        raise JobError(f"{FLAG}: torch_xla's launcher starts a Python script, not {entry.name}; name one (train.py)")
    if not devices.gpus:
        raise JobError(f"{FLAG}: this host has no GPU, and torch_xla's launcher starts one process on each")


def argv(settings: Settings) -> list[str]:
    """The command line."""
    count = str(settings.processes_per_host)
    return [sys.executable, "-m", "torch_xla.distributed.xla_spawn", "--num_gpus", count, *settings.program]


def environment(settings: Settings) -> dict[str, str]:
    """What torch_xla and NCCL below it read; a user's own value beats it."""
    hosts = settings.hosts
    workers = (f"localservice:{index};{host}:{_WORKER_PORT}" for index, host in enumerate(hosts))
    values = {
        "NCCL_DEBUG": "info",
        "NCCL_PROTO": "simple",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "OFI_NCCL_NIC_DUP_CONNS": str(settings.processes_per_host),
        "XRT_HOST_ORDINAL": str(hosts.index(settings.current_host) if len(hosts) > 1 else 0),
        "XRT_SHARD_WORLD_SIZE": str(len(hosts)),
        "XRT_WORKERS": "|".join(workers),
        "GPU_NUM_DEVICES": str(settings.processes_per_host),
    }
    if len(hosts) > 1:
        values["XRT_MESH_SERVICE_ADDRESS"] = f"{hosts[0]}:{_MESH_PORT}"
    return values
