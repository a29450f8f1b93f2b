"""What a step's schedule will look like: an event simulation of the server's rules on a placement.

The rules are those of server/scheduler.py: a rank runs one task at a time; of those that are ready and of the phase
whose turn it is (server/turns.py), a task that resumes on this rank before a new one, then the older micro-batch. At
most active_microbatches are under way. A simple backward waits until none of those is in its forward. Modules that
follow one another on several ranks hand over from rank to rank, as nn.Sequential does.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Sequence

from ..server.turns import Turns

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Visit:
    """A stay of a micro-batch on a rank, with the time that its forward takes there."""

    rank: int
    cost: float


@dataclass(frozen=True)
class Event:
    """A task that ran: its rank, micro-batch, phase, the number of its visit, from start to end."""

    rank: int
    microbatch: int
    phase: str
    visit: int
    start: float
    end: float


@dataclass(frozen=True)
class Schedule:
    """The events of a step in order of their start, and figures of it; times are in units of the visits' costs."""

    events: list[Event]
    ranks: int
    microbatches: int
    pipeline: str
    active_microbatches: int

    @property
    def length(self) -> float:
        """From the first start to the last end."""
        return max((event.end for event in self.events), default=0.0)

    def busy(self, rank: int) -> float:
        """Time that a rank works."""
        return sum(event.end - event.start for event in self.events if event.rank == rank)

    @property
    def bubble(self) -> float:
        """The fraction of all ranks' time in which they wait."""
        whole = self.ranks * self.length
        return 1 - sum(self.busy(rank) for rank in range(self.ranks)) / whole if whole else 0.0


def simulate(
    visits: Sequence[Visit],
    ranks: int,
    microbatches: int,
    active_microbatches: int,
    pipeline: str = "interleaved",
    backward: float = 2.0,
    hop: float = 0.0,
) -> Schedule:
    """The schedule of one step.

    visits: the way of a micro-batch through the ranks, forward. backward: how many times its forward a backward takes.
    hop: time of a message from rank to rank. pipeline: "interleaved", "simple", or "_only_forward".
    """
    run = _Run(list(visits), ranks, microbatches, active_microbatches, pipeline, backward, hop)
    return Schedule(run.events(), ranks, microbatches, pipeline, active_microbatches)


class _Run:
    """The state of a simulation. Times are kept in a heap of (time, number, what happens)."""

    def __init__(
        self,
        visits: list[Visit],
        ranks: int,
        microbatches: int,
        active: int,
        pipeline: str,
        backward: float,
        hop: float,
    ) -> None:
        self.visits, self.ranks, self.microbatches = visits, ranks, microbatches
        self.active, self.pipeline, self.backward, self.hop = active, pipeline, backward, hop
        self.ready: list[dict[str, list[tuple[int, int, int, int]]]] = [
            {FORWARD: [], BACKWARD: []} for _ in range(ranks)
        ]
        self.turns = [Turns(pipeline) for _ in range(ranks)]
        self.free = [True] * ranks
        self.happening: list[tuple[float, int, tuple[str, int, int, str]]] = []
        self.number = itertools.count()
        self.started = self.in_forward = 0
        self.held: list[int] = []
        self.found: list[Event] = []

    def events(self) -> list[Event]:
        """Runs to the end."""
        if not self.visits:
            return []
        for _ in range(min(self.active, self.microbatches)):
            self._admit(0.0)
        while self.happening:
            now = self.happening[0][0]
            # All of one moment first, so that a rank chooses among everything that is ready then.
            while self.happening and self.happening[0][0] == now:
                _, _, (kind, microbatch, visit, phase) = heapq.heappop(self.happening)
                self._happen(now, kind, microbatch, visit, phase)
            for rank in range(self.ranks):
                self._start(now, rank)
        return sorted(self.found, key=lambda event: (event.start, event.rank))

    def _at(self, time: float, kind: str, microbatch: int, visit: int, phase: str) -> None:
        heapq.heappush(self.happening, (time, next(self.number), (kind, microbatch, visit, phase)))

    def _admit(self, now: float) -> None:
        if self.started < self.microbatches:
            self._at(now, "arrive", self.started, 0, FORWARD)
            self.started += 1
            self.in_forward += 1

    def _happen(self, now: float, kind: str, microbatch: int, visit: int, phase: str) -> None:
        rank = self.visits[visit].rank
        if kind == "arrive":
            seen_before = any(each.rank == rank for each in self.visits[:visit]) or phase == BACKWARD
            entry = (0 if seen_before else 1, microbatch, next(self.number), visit)
            heapq.heappush(self.ready[rank][phase], entry)
            return
        last = len(self.visits) - 1
        if (phase, visit, rank) == (FORWARD, last, 0) and self.pipeline == "interleaved":
            self.in_forward -= 1
            self._run(now, BACKWARD, microbatch, visit)  # the step's body goes on from one to the other
            return
        self.free[rank] = True
        if phase == FORWARD and visit < last:
            self._move(now, microbatch, visit, visit + 1, phase)
        elif phase == FORWARD:
            self._forward_over(now, microbatch)
        elif visit > 0:
            self._move(now, microbatch, visit, visit - 1, phase)
        else:
            self._admit(now)

    def _move(self, now: float, microbatch: int, visit: int, following: int, phase: str) -> None:
        away = self.visits[visit].rank != self.visits[following].rank
        self._at(now + (self.hop if away else 0.0), "arrive", microbatch, following, phase)

    def _forward_over(self, now: float, microbatch: int) -> None:
        self.in_forward -= 1
        if self.pipeline == "_only_forward":
            self._admit(now)
            return
        self.held.append(microbatch)
        if self.pipeline == "interleaved" or self.in_forward == 0:
            for each in self.held:
                self._at(now, "arrive", each, len(self.visits) - 1, BACKWARD)
            self.held = []

    def _start(self, now: float, rank: int) -> None:
        forwards, backwards = (self.ready[rank][phase] for phase in (FORWARD, BACKWARD))
        if not self.free[rank] or not (forwards or backwards):
            return
        resumes = bool(forwards) and forwards[0][0] == 0
        phase = BACKWARD if self.turns[rank].backward_next(len(forwards), len(backwards), resumes) else FORWARD
        _, microbatch, _, visit = heapq.heappop(self.ready[rank][phase])
        self.free[rank] = False
        self._run(now, phase, microbatch, visit)

    def _run(self, now: float, phase: str, microbatch: int, visit: int) -> None:
        cost = self.visits[visit].cost * (1.0 if phase == FORWARD else self.backward)
        self.found.append(Event(self.visits[visit].rank, microbatch, phase, visit, now, now + cost))
        self._at(now + cost, "end", microbatch, visit, phase)
