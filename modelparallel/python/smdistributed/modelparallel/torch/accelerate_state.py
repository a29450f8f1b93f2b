"""What Hugging Face's accelerate is told of this job: its processes are the data-parallel replicas, each on many ranks.

From mpirun's or torchrun's variables alone accelerate would take every rank for a replica, and transformers' Trainer,
which leaves the loaders to it, would give the ranks of one pipeline different batches. It would also clip gradients by
the norm of the modules that happen to be on a rank.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Iterator

import torch

from . import comm, optimizer
from .topology import CommGroup

_WORLD = ("LOCAL_RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def tell_accelerate() -> None:
    """Called once by smp.init: where the script has imported accelerate, what it finds from now on is the replicas."""
    package = sys.modules.get("accelerate")
    if package is None or not hasattr(package, "PartialState") or not hasattr(package, "Accelerator"):
        return
    _count_replicas(package.PartialState)
    _gather_from_replicas(package.Accelerator, package)
    _clip_by_global_norm(package.Accelerator)


def _count_replicas(kind: Any) -> None:
    original = kind.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        fresh = not kind._shared_state
        if fresh:
            with _hidden(_WORLD):
                original(self, *args, **kwargs)
            self.num_processes, self.process_index = comm.dp_size(), comm.dp_rank()
            self.local_process_index = comm.local_rank()
        else:
            original(self, *args, **kwargs)

    kind.__init__ = __init__


def _gather_from_replicas(kind: Any, package: Any) -> None:
    def gather(_self: Any, tensor: Any) -> Any:
        """Concatenate the tensors of all replicas, along dimension 0, inside whatever structure."""
        return package.utils.recursively_apply(_gathered, tensor, error_on_other_type=True)

    kind.gather = gather


def _clip_by_global_norm(kind: Any) -> None:
    def clip_grad_norm_(self: Any, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """As smp.clip_grad_norm_: accelerate's own would take the norm of this rank's modules alone."""
        self.unscale_gradients()
        return optimizer.clip_grad_norm_(parameters, max_norm, norm_type)

    kind.clip_grad_norm_ = clip_grad_norm_


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    if comm.dp_size() == 1:
        return tensor
    parts = comm.allgather(tensor.detach(), CommGroup.DP_GROUP)
    return torch.cat([(part if part.dim() else part[None]).to(tensor.device) for part in parts])


@contextlib.contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
