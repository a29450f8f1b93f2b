"""`model.join()`: replicas with fewer batches take part in the averages, with nothing to add, until all are done.

As in torch.nn.parallel.DistributedDataParallel.join; here for each pipeline rank among its own replicas.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Iterator

import torch
import torch.distributed as dist

from .exceptions import SMPUnsupportedError
from .grad_bucket import wait_for
from .state import state
from .topology import CommGroup

if TYPE_CHECKING:
    from .model import DistributedModel


@contextlib.contextmanager
def joined(model: DistributedModel, divide_by_initial_world_size: bool) -> Iterator[None]:
    """Run the block's steps, then shadow those that other replicas still run; then all hold the last one's parameters.

    Raises:
        SMPUnsupportedError: gradients are averaged by a communication hook, or over several steps.
    """
    reducer = model.reducer
    if reducer is None:
        model.on_reducer(lambda made: made.join(divide_by_initial_world_size))
    else:
        reducer.join(divide_by_initial_world_size)
    yield
    reducer = model.reducer
    if reducer is None:  # no replicas, or no step
        return
    steps = reducer.leave()
    group, members = state.groups.process[CommGroup.DP_GROUP], state.groups.members[CommGroup.DP_GROUP]
    # The replica that took the most steps has the parameters that all others lack; of several the first.
    key = torch.tensor([steps * len(members) - members.index(state.launch.rank)], device=state.server.settings.device)
    wait_for(dist.all_reduce(key, op=dist.ReduceOp.MAX, group=group, async_op=True), key)
    source = members[-int(key) % len(members)]
    for kind, tensors in model.replicated_tensors(buffers=True).items():
        if kind is CommGroup.RDP_GROUP and tensors:
            raise SMPUnsupportedError("model.join with tensor parallelism: give all ranks the same number of batches")
        for tensor in tensors:
            dist.broadcast(tensor.detach(), source, group=group)
