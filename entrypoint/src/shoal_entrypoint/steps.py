"""Marks a rank's steps for `shoal report`: how long each lasted, and what of it was waiting.

    from shoal_entrypoint.steps import steps

    for batch in steps(loader):          # a step an iteration; the time until the loader gives a batch is DataSeconds
        with steps.collective(nbytes):   # optional: what the script itself sends
            dist.all_reduce(gradients)
        with steps.checkpoint():
            torch.save(...)

Scripts on smddp or smp need none of it: see marks/. Where they mark their steps themselves, these marks count.
Where nothing is measured (`train` made no folder), marks cost a few function calls and leave nothing. They never raise.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Collection, Dict, Iterable, Iterator, Protocol, TypeVar

__all__ = ["Sources", "Steps", "folder", "lightning_callback", "steps"]

_Item = TypeVar("_Item")
Parts = Dict[str, Any]
_COLLECTIVE = ("CollectiveSeconds", "CollectiveBytes", "Collectives")


class Sources(Protocol):
    """Something that measures parts of steps by itself."""

    def begin(self) -> None:
        """A step begins: what was before is not of it."""

    def parts(self, room: float, own: Collection[str]) -> Parts:
        """The parts of the step that ends, together at most `room` seconds, without the script's `own`."""


def folder() -> str:
    """Where ranks write their steps. `train` makes this folder where it measures, and nowhere else."""
    return os.path.join(os.environ.get("SM_OUTPUT_DIR", "/opt/ml/output"), "profiler", "steps")


class Steps:
    """The steps of this process. One object, `steps`, is enough for a script.

    Attributes:
        by_hand: whether the script marks its steps itself.
        sources: what fills in the parts that the script does not mark.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.by_hand = False
        self.sources: Sources | None = None
        self._folder = folder
        self._file = -1
        self._process = 0
        self._dead = False
        self._number = 0
        self._parts: Parts = {}

    def __call__(self, loader: Iterable[_Item]) -> Iterator[_Item]:
        """Yield what `loader` yields; each iteration is a step."""
        iterator = iter(loader)
        while True:
            began = self.begin()
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
        began = self.begin()
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

    def begin(self) -> float:
        """Begin a step, at the time that is returned: for those who call `end` themselves."""
        self.by_hand = True
        if self.sources is not None:
            self.sources.begin()
        return time.monotonic()

    def end(self, seconds: float) -> None:
        """End a step that has lasted `seconds`: for those who measure themselves."""
        self.by_hand = True
        self.finish(seconds)

    def finish(self, seconds: float) -> None:
        """Write the line of a step that ends now: what the script has marked of it, and what `sources` know beside."""
        parts, self._parts = self._parts, {}
        if self.sources is not None:
            # Who marks a collective knows best what of its step was communication: all of that is the script's then.
            own = {*parts, *(_COLLECTIVE if "CollectiveSeconds" in parts else ())}
            room = seconds - sum(value for name, value in parts.items() if name.endswith("Seconds"))
            parts.update(self.sources.parts(max(0.0, room), own))
            self.sources.begin()
        number, self._number = self._number, self._number + 1
        if self._dead or not self._open():
            return
        step = {**self._who, "Step": number, "Timestamp": time.time(), "Seconds": seconds, **parts}
        try:
            os.write(self._file, json.dumps(step).encode() + b"\n")
        except (OSError, TypeError, ValueError):
            self._dead = True

    @contextlib.contextmanager
    def _part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._add(name, time.monotonic() - began)

    def _add(self, name: str, amount: float) -> None:
        self._parts[name] = self._parts.get(name, 0) + amount

    def _open(self) -> bool:
        if self._file >= 0:
            # A process that was forked off this one is no rank.
            return self._process == os.getpid()
        folder_of_ranks = self._folder or folder()
        rank = os.environ.get("RANK", "0")
        node = _node()
        self._who = {"NodeId": node, "Rank": int(rank) if rank.isdigit() else 0}
        self._process = os.getpid()
        try:
            if os.path.isdir(folder_of_ranks):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(os.path.join(folder_of_ranks, f"{node}-{rank}.jsonl"), flags, 0o644)
        except OSError:
            self._file = -1
        self._dead = self._file < 0
        return not self._dead


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
            self._ended = marks.begin()

        def on_train_batch_start(self, *_arguments: Any) -> None:
            marks._add("DataSeconds", time.monotonic() - self._ended)

        def on_train_batch_end(self, *_arguments: Any) -> None:
            now = time.monotonic()
            marks.end(now - self._ended)
            self._ended = now

    return StepMarks()
