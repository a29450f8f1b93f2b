"""Training jobs of one layout, started once and measured in turns: steps with and without synchronisation."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import machine
from harness.build import UnavailableError
from harness.ddp import Network
from harness.ddp_libraries import Library
from harness.job import Job, JobError, quit_all
from harness.measure import WrongResultError
from harness.peers import Place

Say = Callable[[str], None]
_START_LIMIT = 180.0
_STEP_LIMIT = 120.0


@dataclass
class Steps:
    """What one library's steps took, a value a round."""

    seconds: list[float] = field(default_factory=list)
    unsynchronised_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)  # Of a step, over all ranks.

    def summary(self) -> dict[str, float]:
        step = statistics.median(self.seconds)
        found = {"step_seconds": step, "cpu_seconds": statistics.median(self.cpu_seconds)}
        if self.unsynchronised_seconds:
            exposed = [a - b for a, b in zip(self.seconds, self.unsynchronised_seconds, strict=True)]
            found["without_synchronisation_seconds"] = statistics.median(self.unsynchronised_seconds)
            found["exposed_seconds"] = statistics.median(exposed)
        return {name: round(value, 6) for name, value in found.items()}


class Training:
    """All libraries training one network in one place."""

    def __init__(self, place: Place, network: Network, say: Say) -> None:
        self.place = place
        self.network = network
        self.say = say
        self.jobs: dict[str, Job] = {}
        self.absent: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        self.steps: dict[str, Steps] = {}

    @contextlib.contextmanager
    def started(self, libraries: list[Library], folder: Path) -> Iterator[Training]:
        """Start all ranks, check each library's gradients once; end the ranks with the context."""
        try:
            for library in libraries:
                self._start(library, folder / f"{self.place.layout.name}-{self.network.name}-{library.name}")
            yield self
        finally:
            quit_all(self.jobs.values())

    def _start(self, library: Library, folder: Path) -> None:
        self.say(f"{self.network.name}, {self.place.layout.name}: starting {library.name}")
        try:
            commands = library.commands(self.place, self.network.name)
            job = Job(self.place.layout.ranks, folder)
            job.start(commands, _START_LIMIT)
            self.jobs[library.name] = job
            wrong = sum(int(answer[0]) for answer in job.ask(f"check {library.roundoff!r}", _STEP_LIMIT))
            if wrong:
                raise WrongResultError(f"{wrong} gradients are not the mean over the ranks")
        except (UnavailableError, JobError) as error:
            where = self.wrong if isinstance(error, WrongResultError) else self.absent
            where[library.name] = str(error)
            self.say(f"{self.network.name}, {self.place.layout.name}: without {library.name}: {error}")
            if library.name in self.jobs:
                self.jobs.pop(library.name).kill()

    def measure(self, rounds: int, steps: int, *, wait: float, exposed: bool) -> None:
        """`rounds` turns of `steps` steps for each library, and as many without synchronisation if `exposed`.

        Each turn waits at most `wait` seconds for others to leave the machine alone.
        """
        for number in range(rounds):
            machine.wait_until_quiet(wait)
            for name in list(self.jobs):
                try:
                    self._turn(name, steps, exposed=exposed)
                except JobError as error:
                    self.failed[name] = str(error)
                    self.jobs.pop(name).kill()
            times = ", ".join(f"{name} {found.seconds[-1] * 1e3:.0f} ms" for name, found in self.steps.items())
            self.say(f"{self.network.name}, {self.place.layout.name}: round {number + 1} of {rounds}: {times}")

    def _turn(self, name: str, steps: int, *, exposed: bool) -> None:
        seconds, cpu = self._ask(name, steps, synchronised=True)
        alone = self._ask(name, steps, synchronised=False)[0] if exposed else None
        found = self.steps.setdefault(name, Steps())
        if alone is not None:
            found.unsynchronised_seconds.append(alone)
        found.seconds.append(seconds)
        found.cpu_seconds.append(cpu)

    def _ask(self, name: str, steps: int, *, synchronised: bool) -> tuple[float, float]:
        answers = self.jobs[name].ask(f"steps {int(synchronised)} {steps}", _STEP_LIMIT)
        # A step is done when its slowest rank is.
        slowest = [max(times) for times in zip(*(answer[2:] for answer in answers), strict=True)]
        return statistics.median(slowest), sum(answer[1] for answer in answers)
