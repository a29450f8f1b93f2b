"""The device of this process: one process, one GPU, by local rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .exceptions import SMPConfigError

if TYPE_CHECKING:
    from .launch import Launch


def select(launch: Launch) -> None:
    """Makes the GPU of this local rank the current one, where there are any; SMPConfigError if it has none."""
    if not torch.cuda.is_available():
        return
    devices = torch.cuda.device_count()
    # A launcher that shows each rank one device only is right too.
    index = launch.local_rank if devices > 1 else 0
    if index >= devices:
        raise SMPConfigError(
            f"local rank {launch.local_rank} has no GPU of its own: start {devices} ranks on a host, one for each GPU"
        )
    torch.cuda.set_device(index)
