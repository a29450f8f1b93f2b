"""All libraries of one layout, started once and measured in turns.

A round measures every library at one size, one after the other, between two looks at the caches. Ratios are taken
inside a round and only then summarised, because a virtual machine's cores move between rounds.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import machine
from harness.build import UnavailableError
from harness.job import Job, JobError, quit_all
from harness.machine import Links
from harness.peers import Peer, Place
from harness.results import Cell, Round

Say = Callable[[str], None]
_SMALL = 64 << 10
_LATE_SECONDS = 0.2
_LATE_BYTES = 64 << 10


@dataclass(frozen=True)
class Effort:
    """How long to measure. `seconds` is the time for one library, size and round; long operations take more.

    A round waits at most `wait` seconds for others to leave the machine alone.
    """

    rounds: int
    seconds: float
    wait: float

    def split(self, estimate: float) -> tuple[int, int]:
        """(iterations in a batch, batches) for an operation that takes about `estimate` seconds."""
        # A batch of 20 ms hides the clock and the ranks' unequal start; two batches are the least for a median.
        iterations = max(1, min(2000, round(0.02 / estimate)))
        batches = max(2, min(30, round(self.seconds / (iterations * estimate))))
        return iterations, batches


def each_alone(clocks: list[list[float]]) -> list[float]:
    """Seconds of each batch before which the ranks met: those of its slowest rank.

    `clocks` are, for each rank, when its batches began and ended: begin, end, begin, end, ...
    """
    spans = [[end - begin for begin, end in zip(clock[::2], clock[1::2], strict=True)] for clock in clocks]
    return [max(batch) for batch in zip(*spans, strict=True)]


def follow_one_another(clocks: list[list[float]]) -> list[float]:
    """Seconds of each batch but the first where the ranks met only once: from when the last rank ended the one before.

    (A rank's own time would count twice what it comes late: once as its own, and once as that of those who wait.)
    """
    ends = [max(batch) for batch in zip(*(clock[1::2] for clock in clocks), strict=True)]
    return [end - before for before, end in itertools.pairwise(ends)]


@dataclass
class Entrant:
    """A library that takes part, and how it fares."""

    peer: Peer
    job: Job
    shaped: bool
    estimates: dict[int, float] = field(default_factory=dict)

    def measure(self, operation: str, size: int, effort: Effort) -> tuple[float, float]:
        """(seconds of one operation, CPU seconds of one operation over all ranks).

        Raises:
            JobError: it failed, or its result was wrong.
        """
        if size not in self.estimates:
            first, _ = self._ask(operation, size, 10 if size <= _SMALL else 1, 1, again=False, limit=120)
            self.estimates[size] = max(first, 1e-7)
        estimate = self.estimates[size]
        iterations, batches = effort.split(estimate)
        limit = 60 + 20 * estimate * (iterations * batches + 3)
        # A second check after the clock stopped: a race may need many rounds to show. Not where it costs seconds.
        seconds, cpu = self._ask(operation, size, iterations, batches, again=estimate < 0.5, limit=limit)
        self.estimates[size] = max(seconds, 1e-7)
        return seconds, cpu

    def _ask(
        self, operation: str, size: int, iterations: int, batches: int, *, again: bool, limit: float
    ) -> tuple[float, float]:
        # A link with a limit saves up its burst while ranks meet: whose meeting takes longer would get more of it. So
        # there all batches follow one another, and the first, which may use what was saved, is not counted.
        first = 1 if self.shaped else 0
        counts = f"{iterations} {batches + first} {int(again)} {first}"
        line = f"measure {operation} {size} {self.peer.roundoff!r} {counts}"
        answers = self.job.ask(line, limit)
        wrong = sum(int(answer[0]) for answer in answers)
        if wrong:
            raise WrongResultError(f"{wrong} elements of a {operation} of {size} bytes are wrong")
        clocks = [answer[2:] for answer in answers]
        took = follow_one_another(clocks) if self.shaped else each_alone(clocks)
        return statistics.median(took) / iterations, sum(answer[1] for answer in answers)

    def waiting_share(self) -> float:
        """Share of a core that a rank burns while it waits for a late one."""
        answers = self.job.ask(f"wait {_LATE_BYTES} {_LATE_SECONDS}", 60)
        return max(cpu / seconds for _, cpu, seconds in answers[1:])


class WrongResultError(JobError):
    """A library's sums, or what it moved, were not right."""


class Field:
    """The libraries of one layout."""

    def __init__(self, place: Place, say: Say) -> None:
        self.place = place
        self.say = say
        self.entrants: list[Entrant] = []
        self.settings: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.wrong: dict[str, str] = {}

    @contextlib.contextmanager
    def started(self, peers: list[Peer], operation: str, folder: Path) -> Iterator[Field]:
        """Start the ranks of all `peers`; end them with the context."""
        try:
            for peer in peers:
                self._start(peer, operation, folder)
            yield self
        finally:
            quit_all([entrant.job for entrant in self.entrants])

    def _start(self, peer: Peer, operation: str, folder: Path) -> None:
        if operation not in peer.operations:
            self.absent[peer.name] = f"has no {operation}"
            return
        self.say(f"{self.place.layout.name}: starting {peer.title}")
        try:
            commands = peer.commands(self.place)
            job = Job(self.place.layout.ranks, folder / f"{self.place.layout.name}-{operation}-{peer.name}")
            job.start(commands, peer.start_limit)
        except (UnavailableError, JobError) as error:
            # A library that is not there, or does not start, is absent; one that breaks later has failed.
            self.absent[peer.name] = str(error)
            self.say(f"{self.place.layout.name}: without {peer.title}: {error}")
            return
        self.settings[peer.name] = peer.settings(self.place)
        self.entrants.append(Entrant(peer, job, self.place.layout.shaped))

    def fail(self, entrant: Entrant, error: JobError) -> None:
        where = self.wrong if isinstance(error, WrongResultError) else self.failed
        where[entrant.peer.name] = str(error)
        self.say(f"{self.place.layout.name}: {entrant.peer.title} is out: {error}")
        entrant.job.kill()
        self.entrants.remove(entrant)

    def round(self, operation: str, size: int, number: int, effort: Effort, links: Links) -> Round:
        """Every library once, in an order that turns from round to round."""
        busy = machine.wait_until_quiet(effort.wait)
        before = machine.caches(self.place.cache)
        result = Round(c2c_nanoseconds=[before.nanoseconds], labels=[before.label], busy=busy)
        turn = number % max(1, len(self.entrants))
        for entrant in self.entrants[turn:] + self.entrants[:turn]:
            try:
                seconds, cpu = entrant.measure(operation, size, effort)
            except JobError as error:
                self.fail(entrant, error)
                continue
            result.seconds[entrant.peer.name] = seconds
            result.cpu_seconds[entrant.peer.name] = cpu
        after = machine.caches(self.place.cache)
        result.c2c_nanoseconds.append(after.nanoseconds)
        result.labels.append(after.label)
        rate = links.bytes_per_second(size)
        result.bound_seconds = machine.bound_seconds(self.place.cache, self.place.layout, operation, size, rate)
        result.sum_seconds = machine.sum_seconds(self.place.cache, self.place.layout, operation, size)
        return result

    def fill(self, cells: list[Cell], effort: Effort, links: Links) -> None:
        """Rounds over all cells, so that what changes slowly hits all sizes alike."""
        for number in range(effort.rounds):
            for cell in cells:
                if not self.entrants:
                    return
                done = self.round(cell.operation, cell.bytes, number, effort, links)
                cell.rounds.append(done)
                self.say(f"{self.place.layout.name}: round {number + 1} of {effort.rounds}: {cell.progress()}")

    def waiting_shares(self) -> dict[str, float]:
        """For each library, the share of a core that waiting costs: the median of three."""
        shares = {}
        for entrant in list(self.entrants):
            try:
                shares[entrant.peer.name] = statistics.median(entrant.waiting_share() for _ in range(3))
            except JobError as error:
                self.fail(entrant, error)
        return shares
