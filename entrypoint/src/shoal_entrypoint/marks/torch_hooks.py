"""The places in torch at which the events of a training loop are seen. Each is wrapped once, for the process's life."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable

from shoal_entrypoint.marks.watch import Watch

__all__ = ["install"]


def install(watch: Watch) -> bool:
    """Let `watch` know of steps, batches, checkpoints and models to come; False if torch does not tell of steps."""
    import torch
    from torch.optim import optimizer

    register = getattr(optimizer, "register_optimizer_step_post_hook", None)  # torch 2.0
    if register is None:
        return False
    _loaders(torch, watch)
    _savers(torch, watch)
    _models(watch)
    register(_steps(watch))
    return True


def _steps(watch: Watch) -> Callable[[Any, Any, Any], None]:
    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with contextlib.suppress(Exception):  # marks are not worth a job
            watch.stepped(optimizer)

    # What torch._dynamo.disable sets, without its second of imports: an optimizer whose step is compiled is not to
    # compile this, and warn of what it cannot.
    stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
    return stepped


def _loaders(torch: Any, watch: Watch) -> None:
    from torch.utils.data import dataloader

    # A private name, but there is no other place that all loops over loaders pass: a wrapped DataLoader.__iter__ would
    # have to return an object of another class, and scripts look at the iterator's.
    base: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
    take = getattr(base, "__next__", None)
    if take is None:
        return

    @functools.wraps(take)
    def __next__(self: Any) -> Any:  # noqa: N807
        return watch.fetches(lambda: take(self), not torch.is_grad_enabled())

    base.__next__ = __next__


def _savers(torch: Any, watch: Watch) -> None:
    save = torch.save

    @functools.wraps(save)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return watch.saves(lambda: save(*args, **kwargs))

    torch.save = torch.serialization.save = marked


def _models(watch: Watch) -> None:
    from torch.nn.parallel import DistributedDataParallel

    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        watch.averaging.add(self)

    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign]
