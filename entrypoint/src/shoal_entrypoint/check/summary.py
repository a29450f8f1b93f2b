"""The lines at a job's start: what this host is, and what a glance shows to be wrong. Never a reason to stop.

Every job runs this: nothing is started and nothing is asked that does not answer in microseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Mapping

from shoal_entrypoint import devices
from shoal_entrypoint.check import storage
from shoal_entrypoint.check.row import size
from shoal_entrypoint.configuration import Resource
from shoal_entrypoint.log import log
from shoal_entrypoint.paths import Paths

__all__ = ["lines", "show"]


def show(
    resource: Resource,
    launcher: str,
    processes: int,
    env: Mapping[str, str],
    paths: Paths,
    environ: Mapping[str, str],
) -> None:
    """Log them. `env`: of the user's process; `environ`: as it was given to the container."""
    forced = environ.get("SHOAL_EFA")
    efa = devices.efa_devices(Path("/sys/class/infiniband"))[0] if forced is None else forced == "1"
    for line in lines(resource, launcher, processes, env, efa, paths):
        log(line)


def lines(
    resource: Resource,
    launcher: str,
    processes: int,
    env: Mapping[str, str],
    efa: bool,
    paths: Paths,
    shm: str = "/dev/shm",
) -> list[str]:
    """One line about this host, and one for each thing worth a look."""
    chosen = env["SM_NETWORK_INTERFACE_NAME"]
    room = storage.room(shm)
    words = [_host(resource), chosen, f"{env['SM_NUM_CPUS']} CPUs", f"{env['SM_NUM_GPUS']} GPUs"]
    words += [f"{env['SM_NUM_NEURONS']} Neuron cores"] if env["SM_NUM_NEURONS"] != "0" else []
    words += ["EFA" if efa else "no EFA", f"{launcher} x {processes}"]
    words += ["no /dev/shm" if room is None else f"shm {size(room.total)}"]
    notes: list[str] = []
    if resource.network_interface != chosen and "network_interface_name" in resource.raw:
        notes.append(f"{resource.network_interface} does not exist here, {chosen} is used")
    if processes > 1 and (room is None or room.total <= storage.SMALL_SHM):
        notes.append(
            f"/dev/shm has {size(room.total if room else 0)} for {processes} processes: data loaders with workers may"
            " need more (docker run --shm-size=1g)"
        )
    notes += _full_disks((str(paths.model), str(paths.output), "/tmp"))
    return [", ".join(words), *(f"note: {note}" for note in notes)]


def _host(resource: Resource) -> str:
    place = resource.hosts.index(resource.current_host) + 1
    source = resource.raw.get("found_by") or "resourceconfig.json"
    return f"{resource.current_host} is host {place} of {len(resource.hosts)} ({source})"


def _full_disks(folders: Iterable[str]) -> list[str]:
    notes: list[str] = []
    seen: set[int] = set()
    for folder in folders:
        room = storage.room(folder)
        if room is None or not storage.nearly_full(room):
            continue
        device = Path(folder).stat().st_dev
        if device not in seen:
            inodes = "" if room.free >= storage.LITTLE_DISK else f"{size(room.free)} free"
            notes.append(f"{folder}: the disk is almost full: {inodes or f'{room.free_inodes} more files (inodes)'}")
        seen.add(device)
    return notes
