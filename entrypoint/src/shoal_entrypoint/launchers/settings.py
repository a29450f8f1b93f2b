"""What every launcher needs to know, and which launcher a job asks for."""

from __future__ import annotations

import shlex
from typing import Any, Mapping, NamedTuple

from shoal_entrypoint.configuration import Job
from shoal_entrypoint.devices import Devices
from shoal_entrypoint.outcome import JobError

__all__ = [
    "EFA_RDMA",
    "MPI",
    "MPI_FAMILY",
    "PARAMETER_SERVER",
    "PROCESS",
    "PYTORCHDDP",
    "SMDDP",
    "TORCHRUN",
    "XLA",
    "Settings",
    "choose",
    "count_parameter",
    "processes_per_host",
]

MPI, PYTORCHDDP, TORCHRUN, SMDDP, XLA, PROCESS = "mpi", "pytorchddp", "torchrun", "smddp", "xla", "process"
PARAMETER_SERVER = "parameter_server"
MPI_FAMILY = (MPI, PYTORCHDDP, SMDDP)

# Instance types whose EFA reads GPU memory directly.
EFA_RDMA = {
    f"ml.{name}"
    for name in (
        "p4d.24xlarge",
        "p4de.24xlarge",
        "p5.48xlarge",
        "p5e.48xlarge",
        "p5en.48xlarge",
        "p6-b200.48xlarge",
        "trn1.32xlarge",
        "p6e-gb200.36xlarge",
    )
}

# In the order in which existing jobs with several flags are resolved.
_FLAGS = (
    ("sagemaker_mpi_enabled", MPI),
    ("sagemaker_pytorch_ddp_enabled", PYTORCHDDP),
    ("sagemaker_torch_distributed_enabled", TORCHRUN),
    ("sagemaker_distributed_dataparallel_enabled", SMDDP),
    ("sagemaker_pytorch_xla_multi_worker_enabled", XLA),
    ("sagemaker_parameter_server_enabled", PARAMETER_SERVER),
)


class Settings(NamedTuple):
    """The facts that a command line is made of."""

    hosts: tuple[str, ...]
    current_host: str
    processes_per_host: int
    interface: str
    instance_type: str
    efa: bool
    program: list[str]  # the user's part: interpreter, script, arguments
    user_environment: Mapping[str, str]  # as it was before `train` added anything
    framework_parameters: Mapping[str, Any]
    exports: tuple[str, ...] = ()  # names that the mpi launcher passes on
    smddprun: bool = False
    smddpmprun: bool = False
    torch: str | None = None  # its version; None when it is not installed
    model_parallel: Mapping[str, Any] = {}  # mp_parameters
    hostname_shim: str | None = None  # the library that tells ranks the job's name of their host


def choose(job: Job) -> str:
    """The launcher that the job's flags ask for on this host."""
    resource = job.resource
    if resource.current_group not in job.distribution_groups:
        return PROCESS
    asked = next((launcher for flag, launcher in _FLAGS if job.enabled(flag)), PROCESS)
    if asked != PROCESS and not job.in_distribution:  # hosts that each ran the whole job would look like a success
        raise JobError(
            f"resourceconfig.json: current_group_name: {resource.current_group}: {resource.current_host} is in no such"
            f" group of instance_groups ({', '.join(resource.group_names)})"
        )
    if asked == XLA:
        from shoal_entrypoint.launchers import xla  # next to no job asks for it

        xla.require()
    return asked


def processes_per_host(job: Job, devices: Devices) -> int:
    """How many ranks each host gets: the job's word, else one per GPU, per Neuron core, or one."""
    return (
        count_parameter(job.framework_parameters, "sagemaker_mpi_num_of_processes_per_host")
        or devices.gpus
        or devices.neurons
        or 1
    )


def total_processes(settings: Settings) -> int:
    """`mpirun -np`: the job's word (mpi launcher only), else all slots."""
    named = count_parameter(settings.framework_parameters, "sagemaker_mpi_num_processes")
    return named or settings.processes_per_host * len(settings.hosts)


def count_parameter(parameters: Mapping[str, Any], name: str) -> int | None:
    """A hyperparameter that counts something: None where it is not given."""
    value = parameters.get(name)
    if value is None or value == "":
        return None
    try:
        count = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else 0
    except ValueError:
        count = 0
    if count < 1:
        raise JobError(f"hyperparameters.json: {name}: a whole number of at least 1 was expected, not {value!r}")
    return count


def split_options(parameters: Mapping[str, Any], name: str) -> list[str]:
    """A launcher's options from a hyperparameter, split as a shell would, without a shell."""
    given = parameters.get(name)
    if given is None:
        return []
    try:
        if not isinstance(given, str):
            raise ValueError("a text with options was expected")
        return shlex.split(given)
    except ValueError as error:
        raise JobError(f"hyperparameters.json: {name}: {given!r}: {error}") from None


def environment_additions(launcher: str, settings: Settings) -> dict[str, str]:
    """Variables that a launcher sets rather than passes as options; a user's own value beats them."""
    if launcher == XLA:
        from shoal_entrypoint.launchers import xla  # next to no job asks for it

        return xla.environment(settings)
    if launcher != TORCHRUN:
        return {}
    values = {"NCCL_PROTO": "simple"}
    if settings.efa:
        values["FI_PROVIDER"] = "efa"
        if settings.instance_type in EFA_RDMA:
            values.update(FI_EFA_USE_DEVICE_RDMA="1", RDMAV_FORK_SAFE="1")
    return values
