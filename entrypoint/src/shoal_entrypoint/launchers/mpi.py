"""mpirun for plain MPI jobs, and for `smdistributed.modelparallel`, which adds words of its own to it."""

from __future__ import annotations

from shoal_entrypoint.launchers import mpirun
from shoal_entrypoint.launchers.settings import Settings, total_processes

__all__ = ["argv"]

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def argv(settings: Settings) -> list[str]:
    """The command line."""
    user = settings.user_environment
    debug, custom = mpirun.custom_options(settings.framework_parameters.get("sagemaker_mpi_custom_mpi_options"), user)
    command = ["mpirun", "--host", mpirun.hosts_option(settings.hosts, settings.processes_per_host)]
    command += ["-np", str(total_processes(settings)), "--allow-run-as-root", "--display-map", "--tag-output"]
    command += ["-mca", "btl_tcp_if_include", settings.interface, "-mca", "oob_tcp_if_include", settings.interface]
    command += ["-mca", "plm_rsh_no_tree_spawn", "1", "-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1"]
    command += ["-mca", "btl", "^openib", "-mca", "orte_abort_on_non_zero_status", "1"]
    command += ["-mca", "btl_vader_single_copy_mechanism", "none", *mpirun.export("NCCL_MIN_NRINGS", "4", user)]
    command += [*mpirun.export("NCCL_SOCKET_IFNAME", settings.interface, user), "-x", f"NCCL_DEBUG={debug}"]
    command += ["-x", "LD_LIBRARY_PATH", "-x", "PATH", *mpirun.preload(settings), *custom]
    if settings.efa:
        nccl = mpirun.efa_nccl(settings.instance_type, user)
        command += [*(mpirun.export("FI_PROVIDER", "efa", user) if nccl else []), *nccl]
        command += mpirun.efa_rdma(settings.instance_type, user)
    for name in (*(name for name in _CREDENTIALS if name in user), *settings.exports):
        command += ["-x", name]
    return [*command, *_modelparallel(settings), *settings.program]


def _modelparallel(settings: Settings) -> list[str]:
    """Words that only jobs with `mp_parameters` get, right before the interpreter."""
    parameters = settings.model_parallel
    if not parameters:
        return []
    words: list[str] = []
    if settings.torch is not None:
        words += ["-x", "NCCL_PROTO=simple", *([] if settings.torch.startswith("1.") else ["-x", "NCCL_ALGO=ring"])]
    if settings.smddpmprun and parameters.get("ddp_dist_backend", "auto") == "auto":
        words += ["smddpmprun", "-i", settings.instance_type, "--allow-bypass"]
    return words
