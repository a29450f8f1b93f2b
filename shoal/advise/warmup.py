"""Gradual warm-up on torch's own schedulers, for training scripts. Needs torch and nothing else: may be copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


def scaled_lr(base_lr: float, base_batch: int, global_batch: int) -> float:
    """Return the learning rate for `global_batch` where `base_lr` was right for `base_batch` samples a step."""
    return base_lr * global_batch / base_batch


def warmup_then(optimizer: Optimizer, schedule: LRScheduler, warmup_steps: int, factor: float) -> LRScheduler:
    """Return a scheduler that raises the learning rate to the optimizer's in equal steps, then follows `schedule`.

    `optimizer` was made with the scaled learning rate and `schedule` for it; neither has been stepped. The first
    `warmup_steps` calls of `step()`, one after each `optimizer.step()`, go from 1/`factor` of that rate to all of it;
    `schedule` begins after them, counting from 0.

    Raises:
        ValueError: `warmup_steps` is negative, or `factor` less than 1.
    """
    # Imported here: `shoal advise` takes scaled_lr from this file, where there may be no torch.
    from torch.optim.lr_scheduler import LinearLR, SequentialLR

    if warmup_steps < 0 or factor < 1:
        raise ValueError(f"warmup_steps={warmup_steps}, factor={factor}: at least 0 and at least 1 were expected")
    if warmup_steps == 0 or factor == 1:
        return schedule
    warmup = LinearLR(optimizer, start_factor=1 / factor, total_iters=warmup_steps)
    return SequentialLR(optimizer, [warmup, schedule], milestones=[warmup_steps])
