"""`train --check`: look at everything, meet the other hosts, print, and say by the exit code whether all is well."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Mapping, NamedTuple

from shoal_entrypoint import __version__, devices, network
from shoal_entrypoint.check import accelerators, interface, job, machine, meeting, storage, table, tools
from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row, worst
from shoal_entrypoint.code import Entry
from shoal_entrypoint.configuration import Job, Resource, find_resource, load_job
from shoal_entrypoint.launchers.settings import MPI_FAMILY, PROCESS, SMDDP, choose, processes_per_host
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.paths import Paths
from shoal_entrypoint.supervise import Supervisor

__all__ = ["run"]

_SCHEMA = 1  # of the JSON; a name that changes its meaning or goes counts it up
_JOIN_SECONDS = 60.0


class _Known(NamedTuple):
    """What later probes need to know. Nothing of it has to be there."""

    resource: Resource | None
    job: Job | None
    launcher: str
    processes: int
    found: devices.Devices


def run(as_json: bool, timeout: float | None) -> int:
    """Check, print, and return the exit code: 0 without problems, 1 with, 128 + signal when it was stopped."""
    environ = dict(os.environ)
    paths = Paths.from_environment(environ)
    rows: list[Row] = []
    stopped = 0
    try:
        supervisor = Supervisor(0.0)
        known = _job(paths, environ, rows)
        findings = _here(known, paths, environ, rows)
        if known.resource is not None:
            joining = {**environ, "SHOAL_JOIN_TIMEOUT": _join_timeout(environ, timeout)}
            problems = [row.name for row in rows if row.state == PROBLEM]
            rows[1:1] = meeting.meet(known.resource, supervisor, joining, findings, problems)
    except JobError as error:
        stopped = error.exit_code
        rows.append(Row("check", PROBLEM, error.text, "Run it again.", {}))
    except Exception as error:  # what was found so far is worth more than a traceback
        text = f"it could not go on: {type(error).__name__}: {error}"
        rows.append(Row("check", PROBLEM, text, "This is a fault of `train`: report it, with this line.", {}))
    _print(rows, known_host(rows), as_json, environ)
    return stopped or int(any(row.state == PROBLEM for row in rows))


def known_host(rows: list[Row]) -> Mapping[str, Any]:
    """What the row about the hosts says of this one."""
    return next((row.values for row in rows if row.name == "hosts"), {})


def _join_timeout(environ: Mapping[str, str], timeout: float | None) -> str:
    """The option, else the job's own setting. A job waits 15 minutes without it: too long for whoever looks on."""
    return str(timeout) if timeout is not None else environ.get("SHOAL_JOIN_TIMEOUT") or str(_JOIN_SECONDS)


def _job(paths: Paths, environ: Mapping[str, str], rows: list[Row]) -> _Known:
    """Rows about the job's files; a broken one takes only what depends on it along."""
    resource = described = None
    launcher, processes = PROCESS, 1
    try:
        resource = find_resource(paths.config, environ, save=False)
        rows.append(_hosts(resource))
    except JobError as error:
        rows.append(Row("hosts", PROBLEM, error.text, job.AS_TRAIN, {"host": os.uname().nodename}))
    found = devices.probe(resource.current_instance_type if resource else "local", environ)
    if resource is not None:
        try:
            described = load_job(paths.config, resource, environ)
            launcher = choose(described)
            processes = 1 if launcher == PROCESS else processes_per_host(described, found)
            rows.append(_launcher(described, launcher, processes))
        except JobError as error:
            rows.append(Row("job", PROBLEM, error.text, job.AS_TRAIN, {}))
    return _Known(resource, described, launcher, processes, found)


def _hosts(resource: Resource) -> Row:
    source = str(resource.raw.get("found_by") or "resourceconfig.json")
    place = resource.hosts.index(resource.current_host) + 1
    shown = ", ".join(resource.hosts[:5]) + (f" and {len(resource.hosts) - 5} more" if len(resource.hosts) > 5 else "")
    values = {"host": resource.current_host, "place": place, "hosts": list(resource.hosts), "found_by": source}
    text = f"{shown} (from {source}); this is {resource.current_host}, host {place} of {len(resource.hosts)}"
    return Row("hosts", OK, text, "", values)


def _launcher(described: Job, launcher: str, processes: int) -> Row:
    hosts = described.distribution_hosts if described.in_distribution else described.resource.hosts
    values = {"launcher": launcher, "processes_per_host": processes, "hosts": len(hosts)}
    if launcher in MPI_FAMILY and len(hosts) > 1 and described.resource.anonymous:
        text = f"{launcher}: mpirun needs the name of every host, and only the first one's is known here"
        advice = "Name them all in SHOAL_HOSTS, or start the ranks with torchrun."
        return Row("job", PROBLEM, text, advice, values)
    return Row("job", OK, f"{launcher}, {processes} process(es) on each of {len(hosts)} host(s)", "", values)


def _here(known: _Known, paths: Paths, environ: Mapping[str, str], rows: list[Row]) -> dict[str, Any]:
    """Rows about this host. Returns what the other hosts are to compare with theirs."""
    resource, described, found = known.resource, known.job, known.found
    several = resource is not None and len(resource.hosts) > 1
    master = described.master if described else resource.hosts[0] if resource else os.uname().nodename
    named = resource.network_interface if resource else "eth0"
    names = (master, *resource.hosts[:2]) if resource else ()
    others = [name for name in names if resource and name != resource.current_host]  # as plan.py has it
    chosen = network.choose_interface(named, others or [network.reachable_name(master, not several)], not several)
    link = interface.interface(named, chosen, several)
    rows += [link, *interface.settings(environ)]
    torch = tools.version_of("torch")
    rows += [accelerators.gpus(found.gpus, torch), accelerators.neuron(found.neurons), accelerators.efa(environ)]
    mpi, smddp = known.launcher in MPI_FAMILY, known.launcher == SMDDP
    rows.append(machine.cpus(found.cpus, processes=known.processes))
    rows += machine.memory(processes=known.processes)
    rows.append(storage.shared_memory(storage.room("/dev/shm"), known.processes, mpi, smddp, found.gpus))
    checkpoints = paths.base / "checkpoints"
    rows += storage.disks([str(paths.model), str(paths.output), str(checkpoints), "/tmp"])
    rows += machine.limits(machine.soft_limits(), found.efa or found.infiniband, os.getuid() == 0)
    if described is not None:
        row, entry = job.entry_point(described, paths.code)
        rows += tools.check(_tools(known, entry), environ.get("PATH", ""))
        rows += [job.source(described, paths.code), row]
        rows += [job.requirements(entry, described, paths.code), *job.channels(described, paths)]
    else:
        rows += tools.check([], environ.get("PATH", ""))
    rows += [machine.user(), machine.kernel()]
    rows.append(job.settings(environ))
    return {
        "hosts": _digest(resource),
        "mtu": link.values.get("mtu"),
        "launcher": known.launcher if described else None,
        "processes": known.processes if described and known.launcher != PROCESS else None,
        "train": __version__,
        "torch": torch,
        "python": sys.version.split()[0],
        "gpus": found.gpus,
    }


def _tools(known: _Known, entry: Entry | None) -> list[tools.Need]:
    if known.job is None or known.resource is None:
        return []
    hosts = known.job.distribution_hosts or known.resource.hosts
    mpi4py = entry is not None and "mpi4py" in entry.mpi_argv([])
    return tools.needs(known.launcher, len(hosts), hosts[0] == known.resource.current_host, mpi4py)


def _digest(resource: Resource | None) -> str | None:
    """The list of hosts, short: 500 names to 500 hosts would be megabytes."""
    if resource is None:
        return None
    import hashlib

    text = "\n".join(resource.hosts).encode("utf-8", "surrogatepass")
    return f"{len(resource.hosts)} hosts, {hashlib.sha256(text).hexdigest()[:8]}"


def _print(rows: list[Row], here: Mapping[str, Any], as_json: bool, environ: Mapping[str, str]) -> None:
    host, place, hosts = here.get("host"), here.get("place"), here.get("hosts") or []
    if as_json:
        text = json.dumps(
            {
                "schema": _SCHEMA,
                "train": __version__,
                "host": host,
                "state": worst([row.state for row in rows]),
                "problems": sum(row.state == PROBLEM for row in rows),
                "notes": sum(row.state == NOTE for row in rows),
                "rows": [row._asdict() for row in rows],
            }
        )
        _write(text + "\n")
        return
    where = f"{host}, host {place} of {len(hosts)}" if place else str(host)
    title = f"train {__version__} --check on {where}"
    _write(table.render(title, rows, table.wants_colour(sys.stdout, environ), table.width_of(sys.stdout)))


def _write(text: str) -> None:
    """To stdout, whatever its encoding; a reader who has gone (`| head`) is no error."""
    try:
        data = text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter would complain at its end
    except OSError as error:
        log(f"stdout: cannot be written: {error}")
