"""What benchmarks/pipeline.py runs: the sides of each case, started once and measured in turns."""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.build import SOURCES, UnavailableError
from harness.job import Command, Job, JobError
from harness.measure import WrongResultError

Say = Callable[[str], None]
_MODELPARALLEL = SOURCES.parents[1] / "modelparallel" / "python"
_START_LIMIT, _STEPS_LIMIT = 240.0, 240.0
# Losses of the sides may differ by the order of float32 additions.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Side:
    """One library with its settings: `parameters` are smp's, `shape` how the model is written for it."""

    name: str
    library: str
    ranks: int
    shape: str = "chain"
    parameters: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One model on a number of ranks, and who runs it."""

    part: str
    ranks: int
    microbatches: int
    sides: tuple[Side, ...]

    @property
    def name(self) -> str:
        return f"{self.part}, {self.ranks} ranks, {self.microbatches} micro-batches"


def _smp(name: str, ranks: int, microbatches: int, shape: str, **more: object) -> Side:
    base = {"partitions": ranks, "microbatches": microbatches}
    by_hand = {} if shape == "plain" else {"auto_partition": False, "default_partition": 0}
    return Side(name, "smp", ranks, shape, {**base, **by_hand, **more})


def sleep_case(ranks: int, microbatches: int) -> Case:
    """The schedule alone: smp at its default limit of micro-batches under way, and without one."""
    sides = (
        Side("gpipe", "gpipe", ranks),
        Side("1f1b", "1f1b", ranks),
        _smp("smp", ranks, microbatches, "chain"),
        _smp("smp, active = M", ranks, microbatches, "chain", active_microbatches=microbatches),
    )
    return Case("sleep", ranks, microbatches, sides)


def compute_case(microbatches: int) -> Case:
    """Real work on two ranks; `smp, plain` is one Sequential that smp cuts by itself."""
    sides = (
        Side("single", "single", 1),
        Side("gpipe", "gpipe", 2),
        Side("1f1b", "1f1b", 2),
        _smp("smp", 2, microbatches, "tail"),
        _smp("smp, active = M", 2, microbatches, "tail", active_microbatches=microbatches),
        _smp("smp, plain", 2, microbatches, "plain"),
    )
    return Case("compute", 2, microbatches, sides)


def memory_case() -> Case:
    """The most memory of a rank, beside that of one process."""
    return Case("memory", 2, 4, (Side("single", "single", 1), _smp("smp", 2, 4, "plain")))


def hop_case() -> Case:
    """What a call of a small module on the other rank costs."""
    return Case("hop", 2, 1, (_smp("smp", 2, 1, "chain"),))


class Sides:
    """The running ranks of a case."""

    def __init__(self, case: Case, folder: Path, say: Say) -> None:
        self.case = case
        self._jobs: dict[str, Job] = {}
        try:
            for number, side in enumerate(case.sides):
                say(f"{case.name}: starting {side.name}")
                job = self._jobs[side.name] = Job(side.ranks, folder / str(number))
                job.start(_commands(case, side), _START_LIMIT)
        except JobError as error:
            self.close()
            raise UnavailableError(f"{case.name}: {error}") from error

    def close(self) -> None:
        for job in self._jobs.values():
            job.kill()

    def ask(self, side: str, line: str) -> list[list[float]]:
        """The numbers of each rank of a side."""
        try:
            return self._jobs[side].ask(line, _STEPS_LIMIT)
        except JobError as error:
            raise UnavailableError(f"{self.case.name}: {side}: {error}") from error

    def warm_up(self, steps: int) -> None:
        """Run the first steps of every side; their losses must be the same.

        Raises:
            WrongResultError: they are not.
        """
        losses = {side.name: _losses(self.ask(side.name, f"steps {steps}"), steps) for side in self.case.sides}
        first, expected = next(iter(losses.items()))
        for name, found in losses.items():
            if any(abs(a - b) > _TOLERANCE * abs(b) for a, b in zip(found, expected, strict=True)):
                raise WrongResultError(f"{self.case.name}: losses of {name}: {found}; of {first}: {expected}")

    def rounds(self, rounds: int, steps: int, say: Say) -> dict[str, list[float]]:
        """Seconds of a step, one value a round: all sides in turn, in an order that turns."""
        names = [side.name for side in self.case.sides]
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            for name in names if number % 2 else names[::-1]:
                answers = self.ask(name, f"steps {steps}")
                # A step is done when its slowest rank is.
                slowest = [max(times) for times in zip(*(answer[steps:] for answer in answers), strict=True)]
                seconds[name].append(statistics.median(slowest))
            told = ", ".join(f"{name} {values[-1] * 1e3:.0f} ms" for name, values in seconds.items())
            say(f"{self.case.name}: round {number + 1} of {rounds}: {told}")
        return seconds


def _losses(answers: list[list[float]], steps: int) -> list[float]:
    """The losses that some rank has (-1: a rank that does not see them)."""
    return [max(values) for values in zip(*(answer[:steps] for answer in answers), strict=True)]


def _commands(case: Case, side: Side) -> list[Command]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [case.part, side.library, str(side.ranks), str(case.microbatches), side.shape]
    argv = [sys.executable, str(SOURCES / "pipeline_worker.py"), *words]
    common = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "SM_", "SMP_"))},
        "PYTHONPATH": os.pathsep.join([str(_MODELPARALLEL), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(side.ranks),
        "LOCAL_WORLD_SIZE": str(side.ranks),
    }
    if side.parameters:
        common["SM_HP_MP_PARAMETERS"] = json.dumps(side.parameters)
    return [Command(argv, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(side.ranks)]
