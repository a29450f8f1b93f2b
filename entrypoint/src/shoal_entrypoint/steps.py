"""Marks a rank's steps for `shoal report`: how long each lasted, and what of it was waiting.

    from shoal_entrypoint.steps import steps

    for batch in steps(loader):          # a step an iteration; the time until the loader gives a batch is DataSeconds
        with steps.collective(nbytes):   # optional: what the script itself sends
            dist.all_reduce(gradients)
        with steps.checkpoint():
            torch.save(...)

Where nothing is measured (no SHOAL_PROFILE=1), marks cost a few function calls and leave nothing. They never raise.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import time
from typing import Any, Iterable, Iterator, TypeVar

__all__ = ["Steps", "lightning_callback", "steps"]

_Item = TypeVar("_Item")
_FLUSH_SECONDS = 1.0


class Steps:
    """The steps of this process. One object, `steps`, is enough for a script."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._file: Any = None
        self._dead = False
        self._number = 0
        self._flushed = 0.0
        self._parts: dict[str, float] = {}

    def __call__(self, loader: Iterable[_Item]) -> Iterator[_Item]:
        """Yield what `loader` yields; each iteration is a step."""
        iterator = iter(loader)
        while True:
            began = time.monotonic()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self._add("DataSeconds", time.monotonic() - began)
            yield item
            self.end(time.monotonic() - began)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One step, for loops that are no iteration over a loader."""
        began = time.monotonic()
        yield
        self.end(time.monotonic() - began)

    @contextlib.contextmanager
    def data(self) -> Iterator[None]:
        """A part of the step that waits for data."""
        with self._part("DataSeconds"):
            yield

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[None]:
        """A part of the step that saves."""
        with self._part("CheckpointSeconds"):
            yield

    @contextlib.contextmanager
    def collective(self, nbytes: int = 0) -> Iterator[None]:
        """A part of the step that waits for a collective of so many bytes."""
        with self._part("CollectiveSeconds"):
            yield
        self._add("CollectiveBytes", nbytes)

    def end(self, seconds: float) -> None:
        """End a step that has lasted `seconds`: for those who measure themselves."""
        parts, self._parts = self._parts, {}
        number, self._number = self._number, self._number + 1
        if self._dead or not self._open():
            return
        step = {**self._who, "Step": number, "Timestamp": time.time(), "Seconds": seconds, **parts}
        try:
            self._file.write(json.dumps(step) + "\n")
            now = time.monotonic()
            if now - self._flushed > _FLUSH_SECONDS:
                self._flushed = now
                self._file.flush()
        except (OSError, ValueError):
            self._dead = True

    @contextlib.contextmanager
    def _part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._add(name, time.monotonic() - began)

    def _add(self, name: str, amount: float) -> None:
        self._parts[name] = self._parts.get(name, 0) + amount

    def _open(self) -> bool:
        if self._file is not None:
            return True
        # `train` makes this folder where it measures, and nowhere else.
        folder = self._folder or os.path.join(os.environ.get("SM_OUTPUT_DIR", "/opt/ml/output"), "profiler", "steps")
        rank = os.environ.get("RANK", "0")
        node = _node()
        self._who = {"NodeId": node, "Rank": int(rank) if rank.isdigit() else 0}
        try:
            if os.path.isdir(folder):
                self._file = open(os.path.join(folder, f"{node}-{rank}.jsonl"), "a")  # noqa: SIM115 - until the end
                atexit.register(self._close)
        except OSError:
            self._file = None
        self._dead = self._file is None
        return not self._dead

    def _close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.close()


def _node() -> str:
    """This host's name in the measurements: by its number, as the sampler has it."""
    try:
        hosts = json.loads(os.environ["SM_HOSTS"])
        return f"algo-{hosts.index(os.environ['SM_CURRENT_HOST']) + 1}"
    except (KeyError, ValueError, AttributeError):
        return "algo-1"


steps = Steps()


def lightning_callback(marks: Steps = steps) -> Any:
    """Return a callback for Lightning's Trainer that marks each training batch as a step, with its wait for data."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[assignment]

    class StepMarks(Callback):
        """From the end of one batch to the end of the next."""

        def __init__(self) -> None:
            self._ended = time.monotonic()

        def on_train_epoch_start(self, *_arguments: Any) -> None:
            self._ended = time.monotonic()

        def on_train_batch_start(self, *_arguments: Any) -> None:
            marks._add("DataSeconds", time.monotonic() - self._ended)

        def on_train_batch_end(self, *_arguments: Any) -> None:
            now = time.monotonic()
            marks.end(now - self._ended)
            self._ended = now

    return StepMarks()
