"""Collect what the hosts of a job leave: the model, and what else they wrote, as archives or as folders."""

from collections.abc import Iterator

from shoal.job.artifacts import write_archive, write_folder
from shoal.job.docker_hosts import Hosts
from shoal.job.interrupts import Interrupts
from shoal.job.plan import ML, Plan
from shoal.job.progress import Progress

_SHOWN_NOTES = 20


class _GivenUp(Exception):  # noqa: N818 - the user's wish, not an error
    """The user does not want to wait for the results."""


def collect(hosts: Hosts, plan: Plan, interrupts: Interrupts, before: int, progress: Progress) -> bool:
    """Write the results; return whether the user gave the collecting up: by two more interrupts than there were before.

    Raises:
        OSError: they cannot be written.
    """
    told = False

    def still_wanted() -> None:
        nonlocal told
        if len(interrupts) > before and not told:
            told = True
            progress.note("collecting results; Ctrl-C once more gives them up")
        if len(interrupts) > before + 1:
            raise _GivenUp

    try:
        for archive, name, folder in (("model", "model", f"{ML}/model"), ("output", "data", f"{ML}/output/data")):
            streams = _streams(hosts, plan, folder, progress)
            if plan.compressed:
                target = plan.run_folder / "output" / f"{archive}.tar.gz"
                notes = write_archive(target, streams, still_wanted)
            else:
                target = plan.run_folder / "output" / name
                notes = write_folder(target, streams, still_wanted)
            for note in notes[:_SHOWN_NOTES]:
                progress.note(f"{target.name}: {note}")
            if len(notes) > _SHOWN_NOTES:
                progress.note(f"{target.name}: {len(notes) - _SHOWN_NOTES} more were left out")
    except _GivenUp:
        progress.note("results were not all collected")
        return True
    return False


def _streams(hosts: Hosts, plan: Plan, folder: str, progress: Progress) -> Iterator[tuple[str, Iterator[bytes]]]:
    for host in plan.hosts:
        stream = hosts.read_folder(host.name, folder)
        if stream is None:
            progress.note(f"{host.name}: {folder} is not there, or no folder: nothing is collected from it")
        else:
            yield host.name, stream
