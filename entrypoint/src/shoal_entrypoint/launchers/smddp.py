"""mpirun for `smdistributed.dataparallel`, and for `pytorchddp`, which differs only by the names of its flags."""

from __future__ import annotations

from shoal_entrypoint.launchers import mpirun
from shoal_entrypoint.launchers.settings import Settings

__all__ = ["argv"]

_SERVER_PORT = 7592
_CUSTOM_OPTIONS = (
    "sagemaker_distributed_dataparallel_custom_mpi_options",
    "sagemaker_pytorch_ddp_custom_mpi_options",
)


def argv(settings: Settings) -> list[str]:
    """The command line. Without an EFA device nothing names the efa provider: libfabric would find none."""
    several = len(settings.hosts) > 1
    user = settings.user_environment
    given = list(filter(None, (settings.framework_parameters.get(name) for name in _CUSTOM_OPTIONS)))
    debug, custom = mpirun.custom_options(" ".join(given) if len(given) > 1 else next(iter(given), None), user)
    slots = f":{settings.processes_per_host}" if several else ""  # here even where it is mpirun's default
    hosts = ",".join(host + slots for host in settings.hosts)
    command = ["mpirun", "--host", hosts, "-np", str(settings.processes_per_host * len(settings.hosts))]
    command += ["--allow-run-as-root", "--tag-output", "--oversubscribe"]
    command += ["-mca", "btl_tcp_if_include", settings.interface, "-mca", "oob_tcp_if_include", settings.interface]
    command += ["-mca", "plm_rsh_no_tree_spawn", "1", "-mca", "pml", "ob1", "-mca", "btl", "^openib"]
    command += ["-mca", "orte_abort_on_non_zero_status", "1", "-mca", "btl_vader_single_copy_mechanism", "none"]
    command += ["-mca", "plm_rsh_num_concurrent", str(len(settings.hosts))]
    command += [*mpirun.export("NCCL_SOCKET_IFNAME", settings.interface, user), "-x", f"NCCL_DEBUG={debug}"]
    command += ["-x", "LD_LIBRARY_PATH", "-x", "PATH"]
    command += ["-x", f"SMDATAPARALLEL_USE_{'HOMOGENEOUS' if several else 'SINGLENODE'}=1"]
    if settings.efa:
        command += [*mpirun.export("FI_PROVIDER", "efa", user), *mpirun.export("RDMAV_FORK_SAFE", "1", user)]
    command += mpirun.preload(settings) + custom
    if settings.efa:
        command += mpirun.efa_nccl(settings.instance_type, user) + mpirun.efa_rdma(settings.instance_type, user)
    if several:
        command += ["-x", f"SMDATAPARALLEL_SERVER_ADDR={settings.hosts[0]}"]
        command += ["-x", f"SMDATAPARALLEL_SERVER_PORT={_SERVER_PORT}"]
        command += ["-x", f"SAGEMAKER_INSTANCE_TYPE={settings.instance_type}"]
    return [*command, *(["smddprun"] if settings.smddprun else []), *settings.program]
