"""Bring to this machine, or divide among the hosts, what channels hold: a folder for each channel and host to mount.

It lies in the run folder while the job runs. Hosts see it read-only.
"""

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoal.errors import ShoalError
from shoal.job.objects import Entry, Objects
from shoal.job.plan import DATA, Mount
from shoal.job.survey import Survey

FOLDER = ".input"  # in the run folder
_AT_ONCE = 8


def stage(
    surveys: Iterable[Survey], objects: Objects, folder: Path, still_wanted: Callable[[], bool]
) -> dict[str, list[Mount]]:
    """Lay out below `folder` what File and FastFile channels hold; return what each host is to mount.

    Stops early, with what there is, when it is no longer wanted.

    Raises:
        ShoalError: something cannot be fetched, or does not fit on the disk.
    """
    mounts: dict[str, list[Mount]] = {}
    work: list[tuple[Entry, Path]] = []
    wanted = [each for each in surveys if each.channel.mode != "Pipe" and each.channel.hosts]
    for survey in wanted:
        channel = survey.channel
        shares = {host: host for host in channel.hosts} if channel.sharded else {"all": None}
        for share, host in shares.items():
            target = folder / share / channel.name
            target.mkdir(parents=True)
            for record in survey.of_host(host or channel.hosts[0]):
                work += [(piece.entry, target / piece.entry.path) for piece in record if piece.entry]
            for reached in [host] if host else channel.hosts:
                mounts.setdefault(reached, []).append(Mount(target, f"{DATA}/{channel.name}"))
    if work:
        _check_room(wanted, folder)
        _fetch(work, objects, still_wanted)
    return mounts


def amount(surveys: Iterable[Survey]) -> str:
    """Return how much there is to be fetched, in words; empty if nothing."""
    wanted = [each for each in surveys if each.channel.mode != "Pipe" and each.channel.hosts]
    return ", ".join(f"{each.channel.name}: {_objects(len(each.records))}, {size(each.size)}" for each in wanted)


def size(count: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _objects(count: int) -> str:
    return f"{count} object" if count == 1 else f"{count} objects"


def _check_room(surveys: list[Survey], folder: Path) -> None:
    """Refuse what surely does not fit; files of this machine are linked, and need none where that works."""
    needed = sum(
        piece.entry.size
        for survey in surveys
        for record in survey.records
        for piece in record
        if piece.entry and piece.entry.uri.startswith("s3://")
    )
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ShoalError(f"the channels need {size(needed)}, and {folder.parent} has {size(free)} left", exit_code=3)


def _fetch(work: list[tuple[Entry, Path]], objects: Objects, still_wanted: Callable[[], bool]) -> None:
    def one(item: tuple[Entry, Path]) -> None:
        entry, target = item
        if still_wanted():
            target.parent.mkdir(parents=True, exist_ok=True)
            objects.fetch(entry, target, still_wanted)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in [pool.submit(one, item) for item in work]:
            done.result()


def make_mount_point(folder: Path, seen_at: str, mount: Mount) -> None:
    """Make in a folder, which a host sees at `seen_at`, what a mount inside it is laid over."""
    point = folder / Path(mount.target).relative_to(seen_at)
    if mount.source.is_file():
        point.parent.mkdir(parents=True, exist_ok=True)
        point.touch()
    else:
        point.mkdir(parents=True, exist_ok=True)


def clear(folder: Path) -> None:
    """Remove what was laid out."""
    shutil.rmtree(folder, ignore_errors=True)
