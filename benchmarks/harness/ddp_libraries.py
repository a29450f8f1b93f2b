"""How a training job under DDP is started on each library."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field

from harness.build import SOURCES, UnavailableError
from harness.job import Command
from harness.peers import BFLOAT16_ROUNDOFF, FLOAT32_ROUNDOFF, Place, clean_environment, free_port, per_rank


@dataclass(frozen=True)
class Library:
    """A back end of DDP; `argument` is what ddp_worker.py calls it."""

    name: str
    argument: str
    roundoff: float = FLOAT32_ROUNDOFF
    settings: dict[str, str] = field(default_factory=dict)

    def commands(self, place: Place, network: str) -> list[Command]:
        """The processes to start.

        Raises:
            UnavailableError: it cannot be had here.
        """
        worker = [sys.executable, str(SOURCES / "ddp_worker.py"), self.argument, network]
        env = {"BENCH_PAYLOAD": str(place.cache.payload()), **self.settings}
        if self.argument == "mpi":
            return [_under_mpirun(place, worker, env)]
        ours = dict(place.options) if self.argument == "smddp" else {}
        return per_rank(place, worker, {**env, **ours})


def _under_mpirun(place: Place, worker: list[str], env: dict[str, str]) -> Command:
    if shutil.which("mpirun.openmpi") is None:
        raise UnavailableError("mpirun.openmpi is not installed (Debian: apt-get install openmpi-bin)")
    first = place.network.hosts[0]
    slots = ",".join(f"{host.address}:{place.layout.ranks_per_host}" for host in place.network.hosts)
    env = {**env, "MASTER_ADDR": first.address, "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": place.interface}
    argv = [*first.enter, "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    argv += ["-np", str(place.layout.ranks), "-x", "BENCH_CHANNEL", "-x", "OMP_NUM_THREADS", "-x", "PYTHONPATH"]
    for name in env:
        argv += ["-x", name]
    chosen = {"pml": "ob1", "btl": "self,tcp,vader", "mpi_yield_when_idle": "1"}
    if place.network.remote_shell:
        argv += ["--host", slots]
        chosen |= {"plm_rsh_agent": str(place.network.remote_shell), "plm_rsh_no_tree_spawn": "1"}
        chosen |= {"btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0"}
    for name, value in chosen.items():
        argv += ["--mca", name, value]
    kept = clean_environment()
    return Command([*argv, *worker], {"PYTHONPATH": "", **kept, **env})


LIBRARIES = (
    Library("smddp", "smddp"),
    Library("smddp-bf16", "smddp", BFLOAT16_ROUNDOFF, {"SMDDP_WIRE_DTYPE": "bfloat16"}),
    Library("gloo", "gloo"),
    # torch's wheels have no MPI back end: the same buckets go through mpi4py.
    Library("openmpi", "mpi"),
)
