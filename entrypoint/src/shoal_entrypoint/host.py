"""One host's part of a job: read its files, meet the others, fetch, install, run, explain a failure."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Mapping

from shoal_entrypoint import code, network, plan, ports, processes, remote, ssh
from shoal_entrypoint.capture import torchrun_cause
from shoal_entrypoint.check import summary
from shoal_entrypoint.configuration import Job, Resource, load_job
from shoal_entrypoint.control import Alone, secret
from shoal_entrypoint.control.leader import Leader
from shoal_entrypoint.control.terms import host_timeout
from shoal_entrypoint.control.worker import Worker
from shoal_entrypoint.explain import explain
from shoal_entrypoint.failure import command_failure, to_exit_code
from shoal_entrypoint.launchers import torchrun
from shoal_entrypoint.launchers.settings import MPI_FAMILY, PARAMETER_SERVER, PROCESS, TORCHRUN, choose
from shoal_entrypoint.outcome import SUCCESS, JobError, Outcome, stopped_early
from shoal_entrypoint.paths import Paths
from shoal_entrypoint.profile import start as profile
from shoal_entrypoint.supervise import Finished, Supervisor

__all__ = ["run"]


def run(
    resource: Resource,
    paths: Paths,
    supervisor: Supervisor,
    channel: Alone | Leader | Worker,
    environ: Mapping[str, str],
) -> Outcome:
    """Do this host's part. Raises JobError when it fails."""
    job = load_job(paths.config, resource, environ)
    me = resource.current_host
    prefixes, interval = _prefixes(environ), profile.wanted(environ)
    shares_mpi = _shares_mpi(job)
    leads = shares_mpi and job.distribution_hosts[0] == me
    if choose(job) in MPI_FAMILY:
        paths = paths.make_run()
    held = ports.for_ssh(environ) if shares_mpi and not leads else None
    card = {"workers": "yes"} if choose(job) == PARAMETER_SERVER else _card(paths, shares_mpi, held)
    cards = channel.exchange(card)
    code.fetch(job, paths.code)
    entry = code.find_entry(job, paths.code)
    code.check(entry, paths.code)
    work = plan.make(job, paths, entry, environ)
    summary.show(resource, work.launcher, work.processes_per_host, work.env, paths, environ)
    if job.s3_output:
        from shoal_entrypoint import intermediate  # few jobs want it, and each import costs milliseconds

        intermediate.start(job.s3_output, job, paths, supervisor, environ)
    if interval is not None:
        profile.start(interval, resource, paths, supervisor)
    if work.uses_mpi:
        # Here rather than in the environment of mpirun, whose command lines everybody on a host can read.
        handed_on = secret.for_ranks(environ)
        remote.save(paths.run / "rank.env", {**plan.rank_environment(work.env), **handed_on})
        if leads or not shares_mpi:
            ssh.require("mpirun", "openmpi-bin")
    _install(work, entry, paths, supervisor)
    if shares_mpi:
        _prepare_ssh(paths, supervisor, cards, work, held, host_timeout(environ))
        supervisor.targets = lambda: processes.ranks(os.getpid())
    channel.ready()
    if supervisor.stop is not None:
        raise stopped_early(supervisor.stop)
    if not work.leads(me):
        return SUCCESS  # its ranks are the first host's business; sshd serves until the job is settled
    if work.members:
        return _run_roles(work, entry, paths, supervisor, channel, prefixes)
    return _run_command(work, entry, paths, supervisor, prefixes)


def _prefixes(environ: Mapping[str, str]) -> bool | None:
    """The user's word on [host:rank] before lines. Asked for early: a mistake in it ends the job before it starts."""
    if not environ.get("SHOAL_LOG_PREFIX"):
        return None
    from shoal_entrypoint import log_prefix  # few jobs say anything

    return log_prefix.wanted(environ)


def _install(work: plan.Plan, entry: code.Entry, paths: Paths, supervisor: Supervisor) -> None:
    commands = code.installs(entry, paths.code)
    env = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", **work.env}  # a question to the package index that nobody reads
    if commands and env.get("CA_REPOSITORY_ARN"):
        from shoal_entrypoint import package_index  # few jobs have their own, and each import costs milliseconds

        env = {**env, **package_index.environment(env)}
    for error_class, argv in commands:
        finished = supervisor.run(argv, str(paths.code), env)
        if finished.returncode:
            raise _failed(error_class, argv, finished, work, supervisor)
    code.check_installed(entry, paths.code, work.env.get("PATH"))


def _run_command(
    work: plan.Plan, entry: code.Entry, paths: Paths, supervisor: Supervisor, prefixes: bool | None
) -> Outcome:
    supervisor.targets = lambda: _targets(work, entry, supervisor.command)
    output, command = None, work.argv
    if work.launcher == TORCHRUN:
        command = torchrun.quick_start(command, work.env.get("PATH"))
    if work.launcher != PROCESS or prefixes:
        from shoal_entrypoint import log_prefix  # a plain job's output passes unchanged

        output = log_prefix.output(work, entry.kind == code.Kind.WORDS, lambda: paths.make_run().run, prefixes)
    finished = supervisor.run(command, str(paths.code), work.env, output)
    if supervisor.abort is not None:
        return supervisor.abort
    if finished.returncode:
        raise _failed("ExecuteUserScriptError", work.argv, finished, work, supervisor)
    return SUCCESS


def _shares_mpi(job: Job) -> bool:
    """Whether this host's ranks are started by one mpirun for several hosts."""
    shares = choose(job) in MPI_FAMILY and len(job.distribution_hosts) > 1
    if shares and job.resource.anonymous:
        raise JobError(
            "mpirun needs the name of every host, and only the first one's is known here: name them all in SHOAL_HOSTS,"
            " or start the ranks with torchrun (sagemaker_torch_distributed_enabled)"
        )
    return shares


def _run_roles(
    work: plan.Plan,
    entry: code.Entry,
    paths: Paths,
    supervisor: Supervisor,
    channel: Alone | Leader | Worker,
    prefixes: bool | None,
) -> Outcome:
    from shoal_entrypoint.roles import Roles  # few jobs have servers

    roles = Roles(supervisor, channel, entry.is_python, work.env, prefixes)
    failed = roles.run(str(paths.code), work.members)
    if failed is not None:
        member, finished = failed
        here = f"rank {member.rank} ({member.role} {member.role_rank}) on {work.env['SM_CURRENT_HOST']}"
        argv, _ = work.members[member]
        raise _failed("ExecuteUserScriptError", argv, finished, work, supervisor, here)
    return SUCCESS if supervisor.abort is None else supervisor.abort


def _card(paths: Paths, shares_mpi: bool, held: ports.Held | None) -> dict[str, object]:
    """The public halves of this host's keys, made for this job, and where they are good."""
    if not shares_mpi:
        return {}
    user = ssh.user()  # first: without one, none of the tools says why it ends
    if held is None:
        ssh.require("ssh", "openssh-client")
        return {"ssh_key": ssh.make_key(paths.run / "id_ed25519"), "addresses": network.own_addresses()}
    ssh.require("sshd", "openssh-server")
    return {"ssh_host_key": ssh.make_key(paths.run / "host_key"), "ssh_port": held.port, "ssh_user": user}


def _prepare_ssh(
    paths: Paths,
    supervisor: Supervisor,
    cards: Mapping[str, Mapping[str, object]],
    work: plan.Plan,
    held: ports.Held | None,
    host_seconds: float,
) -> None:
    first, others = work.hosts[0], work.hosts[1:]
    if held is None:
        logins = {host: ssh.Login.from_card(cards[host], host) for host in others}
        ssh.write_private(paths.run / "known_hosts", ssh.known_hosts(logins))
        ssh.write_private(paths.run / "ssh_config", ssh.client_config(paths.run, logins, host_seconds))
        return
    told = cards[first].get("addresses")
    addresses = [*(told if isinstance(told, list) else []), *network.addresses(first)]
    keys = ssh.authorized_keys(ssh.public_key(cards[first], "ssh_key", first), addresses)
    # Strict wants no folder above the keys that others may write, which TMPDIR is.
    strict = paths.run == Path("/run/shoal") and os.geteuid() == 0
    ssh.start_server(supervisor, paths.run, held, keys, work.env, strict)


def _targets(work: plan.Plan, entry: code.Entry, command: int | None) -> list[int]:
    """Who gets SIGTERM first.

    The ranks themselves, because mpirun would kill them one second after passing it on, torchrun after 30 (also a
    torchrun that a command of the user's own starts). A shell script, or another command: all of it, because a shell
    that waits for a command acts on no signal. A Python script: only it, because its data loaders would die under its
    hands; what it leaves behind is ended afterwards.
    """
    below = processes.descendants(os.getpid())
    if work.launcher != PROCESS or entry.kind == code.Kind.WORDS:
        ranks = processes.ranks(os.getpid())
        if ranks or work.launcher != PROCESS:
            return ranks or below
    return [pid for pid in below if pid == command] if entry.is_python else below


def _failed(
    error_class: str,
    argv: list[str],
    finished: Finished,
    work: plan.Plan,
    supervisor: Supervisor,
    here: str | None = None,
) -> JobError:
    exit_code = to_exit_code(finished.returncode or 0)
    cause = torchrun_cause(finished.stderr.tail()) if work.launcher == TORCHRUN else None
    if cause is not None:
        exit_code = to_exit_code(cause[1]) or exit_code  # torchrun itself always ends with 1
    single = work.launcher in (PROCESS, PARAMETER_SERVER)
    message = explain(finished.stdout, finished.stderr, None if single else work.host_of, here, finished.ranks)
    if len(work.hosts) > 1 and single and here is None:
        message = f"{message}\non {work.env['SM_CURRENT_HOST']}"
    if supervisor.stop is not None:
        name = signal.Signals(supervisor.stop).name
        message = f"Stopped by {name}: the script was asked to end and ended with exit code {exit_code}.\n{message}"
    return command_failure(error_class, exit_code, message.strip(), argv, killed_here=supervisor.stop is not None)
