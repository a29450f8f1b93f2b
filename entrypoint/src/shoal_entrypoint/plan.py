"""From a job's files to what this host does: its role, its launcher's command line, and every process's environment.

The probes (devices, tools, interface) are made here once; the decisions themselves are pure functions elsewhere.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from shoal_entrypoint import devices as probes
from shoal_entrypoint import environment, hyperparameters, limits, network
from shoal_entrypoint.code import Entry, Kind
from shoal_entrypoint.configuration import Job
from shoal_entrypoint.control import secret
from shoal_entrypoint.launchers import mpi, process, settings, smddp, torchrun
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.paths import Paths

__all__ = ["Plan", "make", "model_parallel", "rank_environment", "torch_version"]

_ARGV = {
    settings.MPI: mpi.argv,
    settings.SMDDP: smddp.argv,
    settings.PYTORCHDDP: smddp.argv,
    settings.TORCHRUN: torchrun.argv,
    settings.PROCESS: process.argv,
    settings.PARAMETER_SERVER: process.argv,
}

# Their EFA rules go by the instance type that the estimator names, the others' by that of the host.
_SMDDP_LIKE = (settings.SMDDP, settings.PYTORCHDDP)

_BINDING = "OMPI_MCA_hwloc_base_binding_policy"

# Values of one host that `mpirun -x` carries to the others, where they are wrong.
_PER_HOST = (
    "SM_CURRENT_HOST",
    "SM_CURRENT_INSTANCE_TYPE",
    "SM_CURRENT_INSTANCE_GROUP",
    "SM_CURRENT_INSTANCE_GROUP_HOSTS",
    "SM_NETWORK_INTERFACE_NAME",
    "SM_NUM_CPUS",
    "SM_NUM_GPUS",
    "SM_NUM_NEURONS",
    "SM_RESOURCE_CONFIG",
    "SM_TRAINING_ENV",
)


# A scheduler's word on its own ranks, which are hosts here: torchrun would take some for its options.
_INHERITED = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
    *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    *("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_STANDALONE"),
)

# Shells silently drop variables with other names from the environment of what they start.
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Plan(NamedTuple):
    """What one host does."""

    launcher: str
    hosts: list[str]  # that share the launch
    processes_per_host: int
    argv: list[str]
    env: dict[str, str]
    ordered: bool = True  # ranks are counted host by host
    # Servers and workers of this host, each with its own command line and environment.
    members: Mapping[Any, tuple[list[str], dict[str, str]]] = {}

    @property
    def uses_mpi(self) -> bool:
        """Whether ranks are started by mpirun."""
        return self.launcher in settings.MPI_FAMILY

    def leads(self, host: str) -> bool:
        """Whether this host starts something itself; the others of an MPI job only serve."""
        return not self.uses_mpi or host == self.hosts[0]

    def host_of(self, rank: int) -> str:
        """The host that runs a rank: mpirun fills one host's slots after the other."""
        if not self.ordered:
            return f"one of {', '.join(self.hosts)}"
        return self.hosts[min(rank // self.processes_per_host, len(self.hosts) - 1)]


def make(job: Job, paths: Paths, entry: Entry, environ: Mapping[str, str]) -> Plan:
    """Probe this host and decide."""
    launcher = settings.choose(job)
    handed_on = secret.for_ranks(environ)
    environ = {name: value for name, value in environ.items() if name not in _INHERITED and name not in secret.NAMES}
    devices = probes.probe(job.resource.current_instance_type, environ)
    _check_entry(launcher, entry, devices)
    alone = len(job.resource.hosts) == 1
    master = network.reachable_name(job.master, alone)
    interface = network.choose_interface(job.resource.network_interface, _to_reach(job, master), alone)
    tools = {tool: shutil.which(tool) is not None for tool in ("smddprun", "smddpmprun")}
    exported = limits.leave_out(environment.sm_environment(job, paths, devices, interface, tools, sys.path))
    hosts = job.distribution_hosts if job.in_distribution else job.resource.hosts
    count = _processes(launcher, job, devices)
    facts = settings.Settings(
        hosts=(master,) if alone else tuple(hosts),
        current_host=job.resource.current_host,
        processes_per_host=count,
        interface=interface,
        instance_type=job.instance_type if launcher in _SMDDP_LIKE else job.resource.current_instance_type,
        efa=devices.efa,
        program=[],  # below: a command may name variables
        user_environment=environ,
        framework_parameters=job.framework_parameters,
        exports=tuple(exported),
        smddprun=tools["smddprun"],
        smddpmprun=tools["smddpmprun"],
        torch=torch_version(environ, sys.path),
        model_parallel=model_parallel(launcher, {**environ, **exported}),
        hostname_shim=_hostname_shim() if launcher in settings.MPI_FAMILY else None,
    )
    roles = _roles(launcher, facts)
    env = environment.host_defaults(devices, interface, len(roles) or count)
    env.update(settings.environment_additions(launcher, facts))
    env.update(environ)
    env.update(environment.host_environment(job, master))
    env.update(exported)
    if launcher not in settings.MPI_FAMILY:  # ranks of mpirun find it in a file: see host.py
        env.update(handed_on)
    env.update(_launcher_environment(launcher, paths, facts, env))
    if entry.kind == Kind.WORDS:  # may be another Python, which must not find this one's modules
        env["PYTHONPATH"] = ":".join(filter(None, (str(paths.code), environ.get("PYTHONPATH"))))
    facts = facts._replace(program=_program(launcher, entry, job, env))
    ordered = launcher != settings.TORCHRUN or torchrun.keeps_order(facts)
    told = {member: {**env, **values} for member, values in roles.items()}
    members = {member: (_program(launcher, entry, job, values), values) for member, values in told.items()}
    return Plan(launcher, list(hosts), count, _command_line(launcher, facts), env, ordered, members)


def _launcher_environment(
    launcher: str, paths: Paths, facts: settings.Settings, env: Mapping[str, str]
) -> dict[str, str]:
    """What a launcher needs to start ranks, or a rank that is started without one."""
    values = {} if facts.torch is None else {"SM_DLC_TORCH_VERSION": facts.torch}
    if launcher in settings.MPI_FAMILY:
        values["LD_LIBRARY_PATH"] = env.get("LD_LIBRARY_PATH", "")  # mpirun passes it on, and warns when it cannot
        values.update(_mpi_environment(paths, facts.hosts, env))
    if launcher == settings.PROCESS:
        index = facts.hosts.index(facts.current_host) if len(facts.hosts) > 1 else 0
        values.update(RANK=str(index), WORLD_SIZE=str(len(facts.hosts)), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    return values


def _to_reach(job: Job, master: str) -> list[str]:
    """The hosts by which the interface is chosen: others, because one's own name often means the loopback interface."""
    me = job.resource.current_host
    others = [host for host in (master, *job.distribution_hosts[:2], *job.resource.hosts[:2]) if host != me]
    return others or [master]


def rank_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What a rank takes from the host it runs on, rather than from what mpirun and shells have left of it."""
    return {name: value for name, value in env.items() if name in _PER_HOST or not _SHELL_NAME.fullmatch(name)}


def _processes(launcher: str, job: Job, devices: probes.Devices) -> int:
    if launcher == settings.PROCESS:
        return 1
    return devices.gpus if launcher == settings.XLA else settings.processes_per_host(job, devices)


def _roles(launcher: str, facts: settings.Settings) -> dict[Any, dict[str, str]]:
    if launcher != settings.PARAMETER_SERVER:
        return {}
    from shoal_entrypoint.launchers import parameter_server  # few jobs ask for it

    here = facts.current_host if len(facts.hosts) > 1 else facts.hosts[0]
    return parameter_server.environments(facts, here)


def _command_line(launcher: str, facts: settings.Settings) -> list[str]:
    if launcher == settings.XLA:
        from shoal_entrypoint.launchers import xla  # next to no job asks for it

        return xla.argv(facts)
    return _ARGV[launcher](facts)


def _check_entry(launcher: str, entry: Entry, devices: probes.Devices) -> None:
    if launcher == settings.XLA:
        from shoal_entrypoint.launchers import xla  # next to no job asks for it

        xla.check(entry, devices)
    if launcher != settings.TORCHRUN:
        return
    if entry.kind == Kind.COMMAND:
        raise JobError("Unsupported entry point type for torch_distributed")
    if entry.kind == Kind.PACKAGE:
        raise JobError(
            "Python packages are not supported for torch_distributed. Please use a python script as the entry-point"
        )


def _program(launcher: str, entry: Entry, job: Job, env: Mapping[str, str]) -> list[str]:
    arguments = hyperparameters.to_arguments(job.user_hyperparameters)
    if entry.kind == Kind.WORDS:
        from shoal_entrypoint import command  # few jobs have one

        entry = entry._replace(words=tuple(command.expand(entry.words, env)))
        arguments = arguments if job.command_arguments else []
    if launcher in settings.MPI_FAMILY:
        return entry.mpi_argv(arguments)
    if launcher in (settings.TORCHRUN, settings.XLA):
        return entry.torchrun_argv(arguments)
    return entry.argv(arguments)


def _hostname_shim() -> str | None:
    """Compiled when the package was installed, if there was a compiler."""
    return next((str(path) for path in Path(__file__).resolve().parent.glob("_hostname*.so")), None)


def _mpi_environment(paths: Paths, hosts: Any, env: Mapping[str, str]) -> dict[str, str]:
    """How Open MPI reaches the other hosts and starts ranks, through its environment: the command line stays plain."""
    agent = f"{sys.executable} -I -S {Path(__file__).resolve().parent / 'rank.py'}"
    values = {"OMPI_MCA_orte_fork_agent": agent, "SHOAL_RANK_ENV": str(paths.run / "rank.env")}
    # Else Open MPI binds a rank to a core where there are one or two: all its threads and its data loader's workers.
    values[_BINDING] = env.get(_BINDING, "none")
    if len(hosts) > 1:
        values["OMPI_MCA_plm_rsh_args"] = f"-F {paths.run}/ssh_config"
        values["OMPI_MCA_orte_keep_fqdn_hostnames"] = "1"  # else it asks ssh for names without their domains
    return values


def model_parallel(launcher: str, env: Mapping[str, str]) -> dict[str, Any]:
    """`mp_parameters`, by the variable that ranks get: some set only that."""
    text = env.get("SM_HP_MP_PARAMETERS")
    if launcher != settings.MPI or not text:
        return {}
    try:
        parameters = json.loads(text)
    except (ValueError, RecursionError):
        parameters = None
    if not isinstance(parameters, dict):
        raise JobError(f'mp_parameters: a JSON object was expected, such as {{"partitions": 2}}, not {text!r}')
    return parameters


def torch_version(environ: Mapping[str, str], sys_path: list[str]) -> str | None:
    """The version of the installed torch, from the name of its metadata folder: importing it would cost seconds."""
    for entry in sys_path:
        for folder in Path(entry or ".").glob("torch-*.dist-info"):
            return folder.name[len("torch-") : -len(".dist-info")]
    return environ.get("SM_DLC_TORCH_VERSION") or None
