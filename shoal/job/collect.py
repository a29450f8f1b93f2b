"""Collect what the hosts of a job leave: the model, and what else they wrote, as archives or as folders.

They lie in the run folder, and go to S3 too if the job's output is there.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from shoal.job import profiler
from shoal.job.artifacts import without_empty_folders, write_archive, write_folder
from shoal.job.docker_hosts import Hosts
from shoal.job.interrupts import Interrupts
from shoal.job.objects import Objects
from shoal.job.plan import ML, Plan
from shoal.job.progress import Progress
from shoal.job.side_by_side import one_ahead
from shoal.job.upload import upload

_SHOWN_NOTES = 20


class _GivenUp(Exception):  # noqa: N818 - the user's wish, not an error
    """The user does not want to wait for the results."""


class Collector:
    """Collects the results of one job, until the user gives it up: by two more interrupts than there were before."""

    def __init__(self, plan: Plan, interrupts: Interrupts, progress: Progress) -> None:
        self._plan, self._interrupts, self._progress = plan, interrupts, progress
        self._before = len(interrupts)
        self._told = False
        self.given_up = False

    def collect(self, hosts: Hosts) -> None:
        """Write the results into the run folder.

        Raises:
            OSError: they cannot be written.
        """
        self._unless_given_up("results were not all collected", lambda: self._collect(hosts))

    def upload(self, objects: Objects) -> None:
        """Put the results into S3, if the job's output is there.

        Raises:
            ShoalError: S3 does not take them.
        """
        uri, output = self._plan.output_uri, self._plan.run_folder / "output"
        if uri is None or self.given_up:
            return
        self._unless_given_up(
            f"results were not all uploaded: they are in {output}",
            lambda: upload(objects, output, uri, self._plan.output_key, self._still_wanted),
        )

    def _unless_given_up(self, left: str, work: Callable[[], None]) -> None:
        try:
            work()
        except _GivenUp:
            self._progress.note(left)
            self.given_up = True

    def _still_wanted(self) -> None:
        if len(self._interrupts) > self._before and not self._told:
            self._told = True
            self._progress.note("collecting results; Ctrl-C once more gives them up")
        if len(self._interrupts) > self._before + 1:
            raise _GivenUp

    def _collect(self, hosts: Hosts) -> None:
        for archive, name, folder in (("model", "model", f"{ML}/model"), ("output", "data", f"{ML}/output/data")):
            streams = self._streams(hosts, folder)
            if self._plan.compressed:
                target = self._plan.run_folder / "output" / f"{archive}.tar.gz"
                notes = write_archive(target, streams, self._still_wanted)
            else:
                target = self._plan.run_folder / "output" / name
                notes = write_folder(target, streams, self._still_wanted)
            for note in notes[:_SHOWN_NOTES]:
                self._progress.note(f"{target.name}: {note}")
            if len(notes) > _SHOWN_NOTES:
                self._progress.note(f"{target.name}: {len(notes) - _SHOWN_NOTES} more were left out")

        if self._plan.environment.get(profiler.SWITCH) != "0":
            self._collect_measurements(hosts)

    def _collect_measurements(self, hosts: Hosts) -> None:
        """Every host's files have its own name: they lie side by side, as in S3. What cannot be had costs no job."""
        target = self._plan.run_folder / "profiler-output"
        # An image without our `train` measures nothing, and nobody need be told.
        asked = self._plan.environment.get(profiler.SWITCH) == "1"
        streams = self._streams(hosts, f"{ML}/output/profiler", missing_is_told=asked)
        try:
            write_folder(target, streams, self._still_wanted)
            without_empty_folders(target)
        except OSError as error:
            self._progress.note(f"measurements were not collected: {error}")

    def _streams(
        self, hosts: Hosts, folder: str, *, missing_is_told: bool = True
    ) -> Iterator[tuple[str, Iterator[bytes]]]:
        names = [host.name for host in self._plan.hosts]
        streams = one_ahead(lambda name: hosts.read_folder(name, folder), names, _close)
        with closing(streams):
            for name, stream in zip(names, streams, strict=True):
                if stream is not None:
                    yield name, stream
                elif missing_is_told:
                    self._progress.note(f"{name}: {folder} is not there, or no folder: nothing is collected from it")


def _close(stream: Generator[bytes, None, None] | None) -> None:
    if stream is not None:
        stream.close()
