"""All hosts of a job check at once: they meet on the control channel, as for the job, and compare what they have found.

Rounds of `exchange`, the same on every host: findings, then the clocks, then the names of each host's problems. A host
that runs `train` itself, not the check, is noticed in the first round, and its job is ended with a text that says so.
"""

from __future__ import annotations

from typing import Any, Mapping

from shoal_entrypoint import control
from shoal_entrypoint.check import clock, names
from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row
from shoal_entrypoint.configuration import Resource
from shoal_entrypoint.control import Alone
from shoal_entrypoint.control.leader import Leader
from shoal_entrypoint.control.worker import Worker
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import SUCCESS, JobError, Outcome
from shoal_entrypoint.supervise import Supervisor

__all__ = ["compare", "meet"]

_MARK = "check"  # in a card: its host runs the check
_SHOWN = 5
_LONGEST, _ENDING = 300, 60

# What must be the same everywhere: name in the findings, how people call it, state if not, what to do.
_COMPARED = (
    ("hosts", "list of hosts", PROBLEM, "Give every host the same `hosts`, in the same order."),
    ("mtu", "MTU", PROBLEM, "Set the same MTU everywhere: large messages get stuck between hosts that differ."),
    ("launcher", "launcher", PROBLEM, "Give every host the same hyperparameters.json."),
    ("processes", "processes per host", PROBLEM, "Set sagemaker_mpi_num_of_processes_per_host, or use equal hosts."),
    ("train", "version of train", PROBLEM, "Run the same image on every host."),
    ("torch", "torch", PROBLEM, "Run the same image on every host."),
    ("python", "Python", NOTE, "Run the same image on every host."),
    ("gpus", "GPUs", NOTE, ""),
)

Findings = Mapping[str, Mapping[str, Any]]


def meet(
    resource: Resource,
    supervisor: Supervisor,
    environ: Mapping[str, str],
    findings: Mapping[str, Any],
    problems: list[str],
) -> list[Row]:
    """Rows about the other hosts. `problems`: the names of this host's rows that are problems."""
    if len(resource.hosts) > 1:
        others = [host for host in resource.hosts if host != resource.current_host]
        log(f"waiting for {_some(others)} to run `train --check` as well")
    rows: list[Row] = []
    channel: Alone | Leader | Worker | None = None
    try:
        channel = control.join(resource, supervisor, environ)
        if isinstance(channel, Leader):
            channel.tells_late_hosts = False
        cards = channel.exchange({_MARK: 1, "findings": dict(findings)})
        _refuse_jobs(cards)
        if len(resource.hosts) > 1:
            rows.append(Row("reachable", OK, f"all {len(resource.hosts)} hosts, over the control channel", "", {}))
            rows.append(clock.row(clock.measure(channel.exchange, resource.hosts[0]), resource.hosts[0]))
            rows += compare({host: card.get("findings") or {} for host, card in cards.items()}, resource.hosts[0])
        rows.append(_resolve(resource, supervisor))
        mine = [*problems, *(row.name for row in rows if row.state == PROBLEM)]
        rows += _elsewhere(channel.exchange({"problems": mine}), resource.current_host)
        channel.settle(SUCCESS)
    except JobError as error:
        if supervisor.stop is not None:
            raise
        rows.append(Row("reachable", PROBLEM, _shorten(error.text), _advice(channel), {"error": error.text}))
        if not any(row.name == "resolved" for row in rows):
            rows.append(_resolve(resource, supervisor))
        if channel is not None:
            channel.settle(Outcome(1, error.text))
    if channel is not None:
        channel.leave()
    return rows


def compare(findings: Findings, first: str) -> list[Row]:
    """What the hosts have found against each other."""
    rows: list[Row] = []
    for key, label, state, advice in _COMPARED:
        seen: dict[str, list[str]] = {}
        for host, found in findings.items():
            if found.get(key) is not None:
                seen.setdefault(str(found[key]), []).append(host)
        if len(seen) > 1:
            text = "; ".join(f"{value} on {_some(hosts)}" for value, hosts in sorted(seen.items()))
            rows.append(Row("agreement", state, f"{label}: {text}", advice, {"key": key, "values": seen}))
    if rows:
        return rows
    names_of = ", ".join(label for key, label, _, _ in _COMPARED if (findings.get(first) or {}).get(key) is not None)
    return [Row("agreement", OK, f"the same on all hosts: {names_of}", "", {})]


def _refuse_jobs(cards: Findings) -> None:
    jobs = [host for host, card in cards.items() if _MARK not in card]
    if jobs:
        checks = [host for host in cards if host not in jobs]
        raise JobError(f"{_some(jobs)}: started as `train`, but {_some(checks)} as `train --check`")


def _advice(channel: object) -> str:
    if channel is None:
        return (
            "Start `train --check` on every host, the first one too; their network must let its control port through."
            " A job that is running has that port already."
        )
    return "Start `train --check` on every host at once; their network must let the control port through."


def _resolve(resource: Resource, supervisor: Supervisor) -> Row:
    hosts = resource.hosts[:1] if resource.anonymous else resource.hosts
    if len(resource.hosts) == 1:
        return Row("resolved", OK, "one host: nobody asks for its name", "", {"hosts": {}})

    def wait(done: Any, seconds: float) -> bool:
        return supervisor.wait(lambda: done() or supervisor.stop is not None, timeout=seconds, poll=0.01)

    return names.row(names.look_up(hosts, wait), resource.anonymous)


def _shorten(text: str) -> str:
    """Hundreds of names fill a screen; the JSON has them all."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... {text[-_ENDING:]} (--json has all of it)"


def _elsewhere(cards: Findings, me: str) -> list[Row]:
    found = {host: card.get("problems") or [] for host, card in cards.items() if host != me}
    if not found:
        return []
    bad = {host: problems for host, problems in found.items() if problems}
    values = {"hosts": found}
    if not bad:
        return [Row("others", OK, "no problems on the other hosts", "", values)]
    text = _some([f"{host}: {', '.join(str(name) for name in dict.fromkeys(each))}" for host, each in bad.items()])
    return [Row("others", PROBLEM, text, "Their own tables say what to do.", values)]


def _some(words: list[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
