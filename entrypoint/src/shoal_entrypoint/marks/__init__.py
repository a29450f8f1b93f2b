"""Marks the steps of a script that knows nothing of it. smddp and smp call `watch` where a job is measured; a script on
another back end may do so itself, before it makes its model:

    from shoal_entrypoint.marks import watch

    watch()

A step is what lies between two calls of an optimizer's `step`, from the first batch that a DataLoader gives for it.
Measured of it are: the time in `DataLoader.__next__` and in `torch.save`, what the libraries count of their
collectives, and, for DistributedDataParallel on CPUs, how long backward waited for averaged gradients. A script that
marks its steps itself (steps.py) keeps its marks; then only what it does not mark is added.
"""

from __future__ import annotations

import os

from shoal_entrypoint.marks.counting import Counters
from shoal_entrypoint.marks.watch import Watch
from shoal_entrypoint.steps import folder, steps

__all__ = ["Watch", "watch"]

_watch: Watch | None = None


def watch(counters: Counters | None = None) -> Watch | None:
    """Begin to mark steps, where this job is measured; else do nothing. May be called again, with other counters.

    Args:
        counters: what a library has done in this process so far, by kind of operation: calls, bytes, seconds in the
            operations, and seconds in which the training thread was blocked by them. Called once or twice a step.

    Returns:
        None where nothing is marked: not measured, or torch before 2.0.
    """
    global _watch
    if not os.path.isdir(folder()):
        return None
    if _watch is None:
        from shoal_entrypoint.marks import torch_hooks

        found = Watch(steps)
        if not torch_hooks.install(found):
            return None
        steps.sources = _watch = found
    if counters is not None:
        _watch.counting.add(counters)
    return _watch
