"""The linear scaling rule (Goyal et al. 2017): a batch k times as large, a learning rate k times as high."""

import math
from dataclasses import dataclass

from shoal.advise.warmup import scaled_lr


@dataclass(frozen=True)
class BatchPlan:
    """A job's global batch and what follows from it."""

    global_batch: int  # samples in one step of all ranks
    factor: float  # k: global batch / the batch that the base learning rate was found with
    learning_rate: float  # after the warm-up, which begins at the base learning rate
    steps_per_epoch: int
    warmup_steps: int


def batch_plan(
    *, ranks: int, batch_per_rank: int, base_batch: int, base_lr: float, samples: int, warmup_epochs: float
) -> BatchPlan:
    """Return the plan of a job of `ranks` replicas, each taking `batch_per_rank` of the dataset's `samples` a step.

    The last batch of an epoch counts, as a DataLoader without drop_last has it.
    """
    global_batch = ranks * batch_per_rank
    steps = math.ceil(samples / global_batch)
    return BatchPlan(
        global_batch=global_batch,
        factor=global_batch / base_batch,
        learning_rate=scaled_lr(base_lr, base_batch, global_batch),
        steps_per_epoch=steps,
        # A batch that is no larger than the base needs none.
        warmup_steps=round(warmup_epochs * steps) if global_batch > base_batch else 0,
    )
