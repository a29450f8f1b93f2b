"""What exists when a pipeline begins is no longer looked through in Python's garbage collections; the rest is."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn


class Knot:
    """Refers to itself: only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def two_steps(partitions: int) -> tuple[int, bool]:
    """How many objects are spared after the first step, and whether what came to life later is freed."""
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": partitions, "microbatches": 2})
    gc.unfreeze()  # as in a process that was not forked: see forking/zygote.py
    before = gc.get_freeze_count()
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = smp.DistributedModel(module)

    @smp.step
    def train(values: torch.Tensor) -> torch.Tensor:
        loss = model(values).sum()
        model.backward(loss)
        return loss

    train(torch.ones(4, 4))
    spared = gc.get_freeze_count() - before
    knot = weakref.ref(Knot())
    train(torch.ones(4, 4))
    gc.collect()
    return spared, knot() is None


@pytest.mark.parametrize("partitions", [1, 2])
def test_what_a_pipeline_begins_with_is_spared(partitions: int) -> None:
    """torch alone has more objects than this; a rank that waits for no other leaves the collector as it is."""
    for rank in run_ranks(two_steps, partitions, partitions):
        spared, freed = rank.report
        assert (spared > 50_000) == (partitions > 1)
        assert spared >= 0
        assert freed
