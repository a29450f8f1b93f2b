"""The module server of a rank: runs steps, answers the other ranks' requests, asks its own.

As published in "Pipeline Execution with PyTorch" of the library's guide: every device runs an execution server; a
module that lies on another device is run by a request, and the micro-batch that waits for it gives way to another one.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Callable, NamedTuple

import torch
from torch import nn

from ..exceptions import PeerLostError, SMPUnsupportedError
from . import messages as say
from .ambient import applied, capture
from .failures import Failure, error_of, failure_of
from .inlet import Inlet
from .link import Link
from .ordering import Follower, Leader, Order
from .payload import Directory, pack, unpack
from .relay import LAST_WORDS_SECONDS, Relay
from .scheduler import Scheduler
from .serving import BACKWARD_MARK, FORWARD_MARK, serve_backward, serve_forward
from .step_run import Answer, StepRun
from .tasks import Phase, Task, current, set_current
from .watchdog import Watchdog


class Settings(NamedTuple):
    """What a server is started with: this rank's place in its pipeline and the schedule's parameters."""

    pp_rank: int
    pp_size: int
    rank: int
    pipeline: str
    active_microbatches: int
    device: torch.device
    silence_seconds: float


class Server:
    """One a process. pp rank 0 drives: its bodies run the model; those of other ranks receive what it returned.

    Args:
        settings: this rank's place and the schedule.
        ranks: the global rank of each pp rank.
        inlet: reads the connections.
    """

    def __init__(self, settings: Settings, ranks: list[int], inlet: Inlet | None = None) -> None:
        self.settings = settings
        self.ranks = ranks
        self.inlet = inlet or Inlet()
        foresees = settings.pipeline == "interleaved"
        self.scheduler = Scheduler(settings.pipeline, self.inlet, drives=self.drives, foresees=foresees)
        self.directory: Directory | None = None
        self.links: dict[int, Link] = {}
        self._replicas: dict[int, Link] = {}
        self.order_links: dict[int, Link] = {}
        self.follower = Follower()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._run: StepRun | None = None
        self._number = 0
        self._failed = 0  # the last step that failed here: news of it from other ranks are no news
        self._opening = False
        self._parked: list[tuple[Any, list[tuple[torch.Tensor, bool]]]] = []
        self._finished_peers = 0
        self.relay = Relay(settings.rank, lambda: self._number, self._told)
        self.watchdog = Watchdog(self, settings.silence_seconds)

    @property
    def drives(self) -> bool:
        """Whether the bodies of this rank run the model."""
        return self.settings.pp_rank == 0

    def attach(self, links: dict[int, Link], replicas: dict[int, Link]) -> None:
        """Take the connections to the other pp ranks, by pp rank, and to replicas, by global rank; begin to receive."""
        self.links, self._replicas = links, replicas
        self.relay.attach(links, replicas)
        for link in [*links.values(), *replicas.values()]:
            self.inlet.add(link)

    def attach_order(self, links: dict[int, Link], leads: bool) -> None:
        """Take the connections to the replicas that run tasks in one order: to their leader, or from it."""
        self.order_links = links
        if leads:
            self.scheduler.lead(Leader(links.values()))
        else:
            self.scheduler.follow(self.follower)
        for link in links.values():
            self.inlet.add(link)

    def received_order(self, _link: Link, message: Any, _tensors: list[tuple[torch.Tensor, bool]]) -> None:
        """Take the leader's next turn."""
        if isinstance(message, Order):
            self.follower.told(message)
            self.scheduler.turn_told()

    def lost_order(self, _link: Link, _error: BaseException) -> None:
        """Do nothing: a replica that goes is noticed over the alarms."""

    def place(self, module: nn.Module, owner: dict[str, int]) -> None:
        """Take the partitioned model; `owner`: the pp rank of each qualified module name."""
        self.directory = Directory(module, owner)

    @property
    def names(self) -> Directory:
        """The names of the partitioned model."""
        assert self.directory is not None, "a request came before the model was placed"
        return self.directory

    # -- a step

    def run_step(self, body: Callable[[int], Any], microbatches: int) -> list[Any]:
        """Run `body(i)` for each micro-batch as tasks, serve the other ranks meanwhile; return what they returned.

        Raises:
            SMPError: the step failed on another rank, or one is lost.
            BaseException: what a body raised on this rank.
        """
        if self.settings.pp_size == 1:
            return self._run_alone(body, microbatches)
        results: list[Any] = [None] * microbatches
        ambient = capture()

        def work(index: int) -> None:
            with applied(ambient):
                results[index] = body(index)

        run = self._open(microbatches)
        try:
            self.scheduler.count_waits(True)
            run.start(work, Phase.FORWARD if self.drives else Phase.BODY, lambda index: self._body_ended(run, index))
            self.watchdog.wait(run)
        except BaseException as error:  # Ctrl-C: the others must not wait
            run.fail(failure_of(error, self.settings.rank, None), error)
            raise
        finally:
            self.scheduler.count_waits(False)
            self._close()
        if run.failure is not None:
            if run.own_error is not None and getattr(run.own_error, "_smp_failure", None) is None:
                raise run.own_error
            raise error_of(run.failure)
        return results

    def _run_alone(self, body: Callable[[int], Any], microbatches: int) -> list[Any]:
        """Run the bodies one after the other in the caller's thread: the model lies on this rank alone."""
        self._open(microbatches)
        task: Task | None = None
        try:
            results = []
            for index in range(microbatches):
                self.relay.check()
                task = Task(lambda: None, (index,), Phase.FORWARD, "the step function")
                set_current(task)
                results.append(body(index))
            return results
        except BaseException as error:
            self._failed = self._number
            self.relay.tell(say.Abort(self._number, failure_of(error, self.settings.rank, task)))
            raise
        finally:
            set_current(None)
            self._close()

    def _open(self, microbatches: int) -> StepRun:
        run: StepRun | None = None
        with self._lock:
            failure = self.relay.take()
            # In one hold of the lock with the run: else a request of this step would be taken for one of an old step.
            self._number = number = next(self._numbers)
            if failure is not None:
                self._failed = number
            else:
                run = self._new_run(number, microbatches)
        if run is None:
            assert failure is not None
            self.relay.tell(say.Abort(number, failure))  # a rank that enters this step would wait for us
            raise error_of(failure)
        while self._opening:
            with self._lock:
                # A rank that has failed this step already may ask for things of the next.
                now = [one for one in self._parked if one[0].step == number]
                self._parked = [one for one in self._parked if one[0].step > number]
                self._opening = bool(now)
            for message, tensors in now:
                self._deliver(run, message, tensors)
        return run

    def _new_run(self, number: int, microbatches: int) -> StepRun:
        run = StepRun(number, microbatches, self.settings.active_microbatches, self.scheduler, self.settings.rank)
        run.on_failure = lambda failure: self.relay.tell(say.Abort(number, failure))
        self._finished_peers = 0
        self.scheduler.begin_step(number)
        self.inlet.stepping(True)
        self._run, self._opening = run, True
        return run

    def _close(self) -> None:
        with self._lock:
            if self._run is not None and self._run.failure is not None:
                self._failed = self._number
            self._run = None
            self.inlet.stepping(False)
            self.follower.forget(self._number)

    def _body_ended(self, run: StepRun, index: int) -> None:
        if run.failure is not None:
            return
        if self.drives:
            run.forget(index)
            if run.bodies_left == 0:
                self._maybe_end(run)
            if not run.ended:  # whose end frees all
                self.broadcast(say.MicrobatchDone(run.number, index))
        elif run.bodies_left == 0:
            self.send(0, say.BodiesDone(run.number))

    def _maybe_end(self, run: StepRun) -> None:
        """pp rank 0: end the step once every rank's bodies have ended."""
        with self._lock:
            if run.bodies_left or self._finished_peers < self.settings.pp_size - 1 or run.ended:
                return
            run.ended = True
        self.broadcast(say.StepEnd(run.number))
        run.settle()

    # -- messages out

    def send(self, peer: int, message: Any, tensors: list[torch.Tensor] | None = None, snapshot: bool = False) -> None:
        """Send to the pp rank `peer`.

        Raises:
            PeerLostError: it is gone.
        """
        try:
            self.links[peer].send(message, tensors or [], snapshot)
        except OSError as error:
            self.inlet.drain(self.links[peer], LAST_WORDS_SECONDS)  # its last words may say why it went
            run = self._run
            if run is not None and run.failure is not None:
                raise error_of(run.failure) from None
            raise PeerLostError(f"rank {self.ranks[peer]} is gone: {error}; its own output says why") from error

    def broadcast(self, message: Any, tensors: list[torch.Tensor] | None = None) -> None:
        """Send to every other pp rank; the tensors may be changed afterwards."""
        for peer in self.links:
            self.send(peer, message, tensors, snapshot=True)

    # -- messages in (on the thread that reads: it only queues work)

    def received(self, link: Link, message: Any, tensors: list[tuple[torch.Tensor, bool]]) -> None:
        """Take one message of another rank."""
        if isinstance(message, say.Farewell):
            link.closing = True
            self.lost(link, EOFError("it ended"), message.steps)
            return
        with self._lock:
            run = self._run
            if run is None or message.step != run.number:
                if isinstance(message, say.Abort):
                    if message.step >= self._number and message.step > self._failed:
                        self.relay.keep(message)
                elif message.step > self._number:
                    self._parked.append((message, tensors))
                return
            if self._opening:  # not before those that wait for their delivery: requests are served in their order
                self._parked.append((message, tensors))
                return
        self._deliver(run, message, tensors)

    def _deliver(self, run: StepRun, message: Any, tensors: list[tuple[torch.Tensor, bool]]) -> None:
        if isinstance(message, say.Forward):
            names = ", ".join(repr(name) for name in message.chain[message.segment][1])
            work = lambda: serve_forward(self, run, message, tensors)  # noqa: E731
            label = (*message.label, FORWARD_MARK, message.segment)
            run.launch(work, label, Phase.FORWARD, f"forward of {names} for rank {self.ranks[message.origin]}")
        elif isinstance(message, say.Backward):
            work = lambda: serve_backward(self, run, message, tensors)  # noqa: E731
            label = (*message.label, BACKWARD_MARK, message.segment)
            run.launch(work, label, Phase.BACKWARD, f"backward for rank {self.ranks[message.origin]}")
        elif isinstance(message, say.Reply):
            run.answer(message.label, Answer(message, tensors))
        elif isinstance(message, say.Output):
            run.answer(("output", message.microbatch, message.number), Answer(message, tensors))
        elif isinstance(message, say.Failed):
            run.answer(message.label, Answer(message.failure, []))
        elif isinstance(message, say.MicrobatchDone):
            run.forget(message.microbatch)
        elif isinstance(message, say.BodiesDone):
            self._finished_peers += 1
            self._maybe_end(run)
        elif isinstance(message, say.StepEnd):
            run.ended = True
            run.settle()
        elif isinstance(message, say.Abort):
            run.fail(message.failure)

    def lost(self, link: Link, error: BaseException, steps: int = 0) -> None:
        """Note that a connection ended: a step that is under way cannot go on, and none can begin."""
        rank = self.ranks[link.peer]
        self.relay.forget(link)
        lost = PeerLostError(f"rank {rank} is gone: {error}; its own output says why")
        failure = failure_of(lost, self.settings.rank, None)
        self.relay.lost(failure, steps)
        with self._lock:
            run = self._run
            if run is None and not link.closing:
                self.relay.keep(say.Abort(self._number, failure))
        # A peer that has ended this step saw its end announced: that it leaves now must not fail the step for others.
        if run is not None and not run.ended and run.number > steps:
            _fail_aside(run, failure)

    def _told(self, abort: say.Abort) -> None:
        """Take a failure of another pipeline."""
        with self._lock:
            run = self._run if self.settings.pp_size > 1 else None
            if run is None and abort.step > self._failed:
                self.relay.keep(abort)
        if run is not None:
            _fail_aside(run, abort.failure)

    # -- the model's outputs, for the bodies of ranks that do not drive

    def publish(self, task: Task, output: Any) -> None:
        """pp rank 0: send what the model returned to the bodies of the other ranks."""
        run = self.running
        blob, tensors = pack(output, self.names, None, "the model's output")
        self.broadcast(say.Output(run.number, task.label[0], task.passes, blob), tensors)

    def await_output(self, task: Task) -> Any:
        """Wait for what pp rank 0's model returned in the same pass of the same micro-batch; tensors have no graph."""
        key = ("output", task.label[0], task.passes)
        answer = self.running.wait(key, task, f"the model's output from rank {self.ranks[0]}")
        return unpack(answer.message.blob, [tensor for tensor, _ in answer.tensors], self.names)

    @property
    def running(self) -> StepRun:
        """The step that is under way."""
        run = self._run
        if run is None:
            raise SMPUnsupportedError(
                "the model's modules lie on several ranks: call it, and model.backward, inside a function decorated "
                "with smp.step"
            )
        return run

    def close(self) -> None:
        """Say farewell and end; called when the process exits."""
        steps = self._number if self._run is None else self._number - 1
        self.relay.tell(say.Farewell(self.settings.rank, steps))
        for link in [*self.links.values(), *self._replicas.values(), *self.order_links.values()]:
            link.close()
        self.scheduler.close()
        self.inlet.close()


def _fail_aside(run: StepRun, failure: Failure) -> None:
    """Fail a step from the thread that reads: telling the others may take time, and reading must go on."""
    threading.Thread(target=run.fail, args=(failure,), daemon=True).start()


def task_of(what: str) -> Task:
    """Return the calling task.

    Raises:
        SMPUnsupportedError: the caller is outside a step.
    """
    task = current()
    if task is None:
        raise SMPUnsupportedError(f"{what} outside a step: call it inside a function decorated with smp.step")
    return task
