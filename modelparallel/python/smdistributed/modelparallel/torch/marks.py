"""This rank's steps, for `shoal report`: where `train` measures the job, it has made a folder for them.

Images have the package that writes them (shoal_entrypoint). Elsewhere, and where nothing is measured, `counters` stays
None, and nothing else here does anything. A fault in it must not keep anybody from training.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import time
from typing import Any, Callable, Iterator, TypeVar, cast

import torch.distributed as dist

from .config import Config

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Counters:
    """What this rank has sent and waited for so far, by kind of operation. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, tuple[int, int, float]] = {}

    def add(self, name: str, calls: int = 0, nbytes: int = 0, seconds: float = 0.0) -> None:
        """Count `calls` of so many bytes, and seconds in which there was nothing to do but wait."""
        with self._lock:
            old = self._all.get(name, (0, 0, 0.0))
            self._all[name] = (old[0] + calls, old[1] + nbytes, old[2] + seconds)

    def totals(self) -> dict[str, tuple[int, int, float, float]]:
        """Return calls, bytes, 0 (how long operations are under way is not measured), seconds waited."""
        with self._lock:
            return {name: (calls, nbytes, 0.0, waited) for name, (calls, nbytes, waited) in self._all.items()}


counters: Counters | None = None
_watch: Any = None
_counted_below = False  # smddp counts its collectives itself


def start(cfg: Config) -> None:
    """Begin to mark steps, if this job is measured; called once, by smp.init."""
    global counters, _watch, _counted_below
    folder = os.path.join(os.environ.get("SM_OUTPUT_DIR", "/opt/ml/output"), "profiler", "steps")  # noqa: PTH118
    if not os.path.isdir(folder):  # noqa: PTH112
        return
    with contextlib.suppress(Exception):
        mine = Counters()
        _watch = importlib.import_module("shoal_entrypoint.marks").watch(mine.totals)
        if _watch is None:
            return
        _counted_below = dist.get_backend() == "smddp"
        if not _counted_below and (cfg.shard_optimizer_state or cfg.sharded_data_parallel_degree > 1):
            _watch.incomplete()  # what gathers and scatters shards is not counted here
        counters = mine


@contextlib.contextmanager
def blocked(name: str, nbytes: int) -> Iterator[None]:
    """Run a collective of torch.distributed that returns when it is done."""
    if counters is None or _counted_below:
        yield
        return
    began = time.monotonic()
    yield
    counters.add(name, 1, nbytes, time.monotonic() - began)


def sends(name: str, nbytes: int) -> None:
    """Count a collective of torch.distributed that is waited for later."""
    if counters is not None and not _counted_below:
        counters.add(name, 1, nbytes)


def saving(function: _Function) -> _Function:
    """Decorate a function that saves a checkpoint."""

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if _watch is None:
            return function(*args, **kwargs)
        return _watch.saves(lambda: function(*args, **kwargs))

    return cast("_Function", marked)
