"""Builds several images at once: a failed one does not stop the others, Ctrl-C stops all, nothing is half-tagged."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import docker
from docker.errors import DockerException, ImageNotFound
from requests.exceptions import RequestException

from shoal.errors import ShoalError
from shoal.image.board import Board
from shoal.image.build import Built, build, tags_of
from shoal.image.buildkit import BuildFailedError
from shoal.image.bundle.offline import Offline
from shoal.image.children import Children, StoppedError
from shoal.image.progress import Reporter
from shoal.image.targets import Target
from shoal.image.versions import Versions


@dataclass(frozen=True)
class Outcome:
    """How the build of one image ended."""

    target: Target
    result: Literal["built", "unchanged", "failed", "stopped"]
    seconds: float
    built: Built | None = None
    error: str | None = None
    tail: tuple[str, ...] = ()  # of a failed step, the last lines
    exit_code: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return it as one of the objects that `shoal build --json` prints for several images."""
        facts = {"row": self.target.row, "flavour": self.target.flavour, "result": self.result}
        return {
            **facts,
            "seconds": round(self.seconds, 1),
            "size_bytes": self.built.size_bytes if self.built else None,
            "names": self.built.manifest()["names"] if self.built else None,
            "error": self.error,
        }


@dataclass(frozen=True)
class Workshop:
    """What every build of one run shares."""

    client: docker.DockerClient
    versions: Versions
    root: Path
    children: Children
    offline: Offline | None = None

    def missing(self, target: Target) -> bool:
        """Whether the engine has no image that today's sources would make."""
        tags = tags_of(self.versions, target.row, self.root, target.flavour)
        try:
            self.client.images.get(tags.immutable)
        except ImageNotFound:
            return True
        return False

    def make(self, target: Target, progress: Reporter) -> Outcome:
        """Build one image; whatever a user can put right is an outcome, not an exception."""
        began = time.monotonic()

        def outcome(result: Literal["built", "unchanged", "failed", "stopped"], **facts: Any) -> Outcome:
            return Outcome(target, result, time.monotonic() - began, **facts)

        try:
            self.children.check()
            built = build(
                self.client,
                self.versions,
                target.row,
                self.root,
                progress,
                target.flavour,
                self.children,
                self.offline,
            )
        except StoppedError:
            return outcome("stopped", error="stopped")
        except ShoalError as error:
            tail = error.tail if isinstance(error, BuildFailedError) else ()
            return outcome("failed", error=str(error), tail=tail, exit_code=error.exit_code)
        except (DockerException, RequestException) as error:
            return outcome("failed", error=f"the Docker engine: {_one_line(error)}", exit_code=3)
        except OSError as error:
            return outcome("failed", error=f"{error.filename or self.root}: {error.strerror or error}", exit_code=3)
        return outcome("built" if built.fresh else "unchanged", built=built)


def build_many(shop: Workshop, targets: Sequence[Target], jobs: int, board: Board) -> list[Outcome]:
    """Build `targets`, `jobs` at a time; return how each ended, in their order.

    Ctrl-C (or SIGTERM) stops what runs: those images end as `stopped`.
    """

    def one(target: Target) -> Outcome:
        outcome = shop.make(target, board.reporter(target.label))
        board.end(target.label, outcome.result)
        size = f": {outcome.built.size_bytes / 1e6:.0f} MB" if outcome.built else ""
        board.done(target.label, outcome.result + size)
        if outcome.result == "failed":
            for line in outcome.tail:
                board.say(target.label, f"| {line}")
            board.say(target.label, f"failed: {outcome.error}")
        return outcome

    with ThreadPoolExecutor(jobs, thread_name_prefix="build") as pool, _terminated_as_interrupted():
        futures: list[Future[Outcome]] = [pool.submit(one, target) for target in targets]
        try:
            wait_for(futures)
        except KeyboardInterrupt:
            # Those that wait their turn start, find that all is stopped, and say so.
            shop.children.stop()
            wait_for(futures)
    return [future.result() for future in futures]


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, also where a shell had told this process to ignore interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_line(error: Exception) -> str:
    explanation = getattr(error, "explanation", None) or str(error)
    return " ".join(str(explanation).split())
