"""The libraries that are compared: how each is had, what settings it gets and why, and how its ranks are started."""

from __future__ import annotations

import os
import random
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.build import SOURCES, Cache, UnavailableError, run_tool
from harness.job import Command
from harness.layout import Layout
from harness.network import Host, Network

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
FLOAT32_ROUNDOFF = 2.0**-24
# bfloat16 keeps 8 significant bits; a partial sum, its remembered error and the result are each rounded once.
BFLOAT16_ROUNDOFF = 2.0**-8
# What a launcher around this process may have left must not reach the ranks.
_FOREIGN: tuple[str, ...] = (
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MPI_",
    "I_MPI_",
    "SLURM_",
    "SM_",
    "SMDDP_",
    "SMDATAPARALLEL_",
    "NCCL_",
    "GLOO_",
)
_FOREIGN += ("MASTER_", "TORCHELASTIC_", "CCL_", "FI_", "UCX_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_RANK")


@dataclass(frozen=True)
class Place:
    """Where a job is to run."""

    layout: Layout
    network: Network
    cache: Cache
    options: Mapping[str, str]  # Settings of smddp given on the command line.

    @property
    def oversubscribed(self) -> bool:
        return self.layout.ranks > len(os.sched_getaffinity(0))

    @property
    def interface(self) -> str:
        return "lo" if self.layout.hosts == 1 else "eth0"


def clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    # One thread a rank for everything that uses OpenMP: a rank's fair part of a small machine.
    return kept | {"OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """Below the ports that the kernel hands out by itself."""
    for port in random.sample(range(20000, 32000), 100):
        try:
            socket.create_server(("", port)).close()
        except OSError:
            continue
        return port
    raise UnavailableError("no free port between 20000 and 32000")


class Peer(ABC):
    """A library, or one way to use it."""

    name: str
    title: str
    operations: tuple[str, ...] = OPERATIONS
    roundoff = FLOAT32_ROUNDOFF
    start_limit = 120.0

    @abstractmethod
    def settings(self, place: Place) -> str:
        """What it was given, in words."""

    @abstractmethod
    def commands(self, place: Place) -> list[Command]:
        """The processes to start.

        Raises:
            UnavailableError: the library cannot be had here, or does not do this layout.
        """


def per_rank(place: Place, argv: list[str], env: Mapping[str, str]) -> list[Command]:
    """One process a rank, started as torchrun would."""
    layout = place.layout
    common = {
        "WORLD_SIZE": str(layout.ranks),
        "MASTER_ADDR": place.network.hosts[0].address,
        "MASTER_PORT": str(free_port()),
        "LOCAL_WORLD_SIZE": str(layout.ranks_per_host),
        "GLOO_SOCKET_IFNAME": place.interface,
    }
    made = []
    for rank in range(layout.ranks):
        host = place.network.hosts[layout.host_of(rank)]
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank % layout.ranks_per_host)}
        made.append(Command([*host.enter, *argv], {**clean_environment(), **common, **own, **env}))
    return made


class TorchPeer(Peer):
    """A back end of torch.distributed."""

    library: str

    def environment(self, place: Place) -> dict[str, str]:  # noqa: ARG002 - for those who need it
        return {}

    def settings(self, place: Place) -> str:
        chosen = self.environment(place)
        return "through torch, " + (", ".join(f"{k}={v}" for k, v in chosen.items()) if chosen else "defaults")

    def commands(self, place: Place) -> list[Command]:
        env = {"BENCH_PAYLOAD": str(place.cache.payload()), **self.environment(place)}
        return per_rank(place, [sys.executable, str(SOURCES / "torch_worker.py"), self.library], env)


class Smddp(TorchPeer):
    """Ours, as installed in this interpreter."""

    name = library = "smddp"
    title = "smddp"

    def environment(self, place: Place) -> dict[str, str]:
        return dict(place.options)


class SmddpHalfWire(Smddp):
    """Ours with bfloat16 between hosts."""

    name = "smddp-bf16"
    title = "smddp, 16-bit wire"
    operations = ("all_reduce",)
    roundoff = BFLOAT16_ROUNDOFF

    def environment(self, place: Place) -> dict[str, str]:
        return {**place.options, "SMDDP_WIRE_DTYPE": "bfloat16"}

    def commands(self, place: Place) -> list[Command]:
        if place.layout.hosts == 1:
            raise UnavailableError("nothing goes over a wire inside one host")
        return super().commands(place)


class Gloo(TorchPeer):
    """DDP's default on CPUs."""

    name = library = "gloo"
    title = "gloo"


class DeepSpeed(TorchPeer):
    """DeepSpeed's shared-memory all-reduce, compiled from its source distribution."""

    name = library = "deepspeed"
    title = "DeepSpeed shm"
    operations = ("all_reduce",)

    def settings(self, place: Place) -> str:  # noqa: ARG002 - the same everywhere
        return "inference_all_reduce_ through torch, compiled with -O2 -fopenmp as its own builder does"

    def commands(self, place: Place) -> list[Command]:
        if place.layout.hosts > 1:
            raise UnavailableError("works inside one host only")
        made = super().commands(place)
        folder = deepspeed_extension(place.cache)
        ours = {"BENCH_DEEPSPEED": str(folder), "LOCAL_SIZE": str(place.layout.ranks)}
        return [Command(command.argv, {**command.env, **ours}) for command in made]


def deepspeed_extension(cache: Cache) -> Path:
    """The folder with the compiled module ``deepspeed_shm``.

    Raises:
        UnavailableError: the sources cannot be fetched or compiled.
    """
    source = cache.source_distribution("deepspeed") / "csrc" / "cpu"

    def make(target: Path) -> None:
        target.mkdir()
        script = (
            "import sys; from torch.utils.cpp_extension import load; "
            "load('deepspeed_shm', sys.argv[3:], extra_cflags=['-O2', '-fopenmp'], "
            "extra_include_paths=[sys.argv[2]], build_directory=sys.argv[1])"
        )
        files = [str(source / "comm" / name) for name in ("shm_interface.cpp", "shm.cpp")]
        argv = [sys.executable, "-c", script, str(target), str(source / "includes"), *files]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # Where ninja is.
        run_tool(argv, "compiling DeepSpeed's operation", PATH=path, MAX_JOBS="2")

    import torch

    return cache.made("deepspeed", f"{source}{torch.__version__}", make)


class MpiPeer(Peer):
    """An MPI: one program, compiled for each."""

    def _need(self, program: str, package: str) -> None:
        if shutil.which(program) is None:
            raise UnavailableError(f"{program} is not installed (Debian: apt-get install {package})")

    def _hosts(self, place: Place, slots: bool) -> str:
        count = f":{place.layout.ranks_per_host}" if slots else ""
        return ",".join(host.address + count for host in place.network.hosts)

    def _first(self, place: Place) -> Host:
        """mpirun itself runs in the first host."""
        return place.network.hosts[0]


class OpenMpi(MpiPeer):
    """Debian's Open MPI."""

    name = "openmpi"
    title = "Open MPI"
    single_copy = "cma"

    def _mca(self, place: Place) -> dict[str, str]:
        # ob1, because the UCX and OFI layers were slower here; cma lets a rank read another's memory.
        chosen = {"pml": "ob1", "btl": "self,vader", "btl_vader_single_copy_mechanism": self.single_copy}
        if place.layout.hosts > 1:
            chosen["btl"] = "self,tcp" + (",vader" if place.layout.ranks_per_host > 1 else "")
            chosen |= {"btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0", "plm_rsh_no_tree_spawn": "1"}
        if place.oversubscribed:
            chosen["mpi_yield_when_idle"] = "1"
        return chosen

    def settings(self, place: Place) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._mca(place).items()) + ", not bound to cores"

    def commands(self, place: Place) -> list[Command]:
        self._need("mpirun.openmpi", "openmpi-bin")
        self._need("mpicxx.openmpi", "libopenmpi-dev")
        program = place.cache.compiled("openmpi-worker", "mpi_worker.cpp", ["mpicxx.openmpi"])
        argv = [*self._first(place).enter, "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]
        argv += ["--bind-to", "none", "-np", str(place.layout.ranks), "-x", "BENCH_CHANNEL"]
        if place.network.remote_shell:
            argv += [
                "--mca",
                "plm_rsh_agent",
                str(place.network.remote_shell),
                "--host",
                self._hosts(place, slots=True),
            ]
        for name, value in self._mca(place).items():
            argv += ["--mca", name, value]
        return [Command([*argv, str(program)], clean_environment())]


class OpenMpiAsSageMaker(OpenMpi):
    """Open MPI as SageMaker's launcher starts it: its containers do not allow one process to read another's memory."""

    name = "openmpi-sagemaker"
    title = "Open MPI as SageMaker starts it"
    single_copy = "none"

    def commands(self, place: Place) -> list[Command]:
        if place.layout.ranks_per_host == 1:
            raise UnavailableError("differs from Open MPI only where ranks share a host")
        return super().commands(place)


class Mpich(MpiPeer):
    """Debian's MPICH (ch4:ucx)."""

    name = "mpich"
    title = "MPICH"

    def _ucx(self, place: Place) -> dict[str, str]:
        if place.layout.hosts == 1:
            return {"UCX_TLS": "self,posix,cma"}
        inside = ",posix,cma" if place.layout.ranks_per_host > 1 else ""
        return {"UCX_TLS": f"tcp,self{inside}", "UCX_NET_DEVICES": "eth0"}

    def settings(self, place: Place) -> str:
        return "ch4:ucx, " + ", ".join(f"{name}={value}" for name, value in self._ucx(place).items())

    def commands(self, place: Place) -> list[Command]:
        self._need("mpirun.mpich", "mpich")
        self._need("mpicxx.mpich", "libmpich-dev")
        program = place.cache.compiled("mpich-worker", "mpi_worker.cpp", ["mpicxx.mpich"])
        argv = [*self._first(place).enter, "mpirun.mpich", "-np", str(place.layout.ranks)]
        if place.network.remote_shell:
            argv += ["-launcher", "ssh", "-launcher-exec", str(place.network.remote_shell), "-iface", "eth0"]
            argv += ["-hosts", self._hosts(place, slots=True)]
        argv += ["-genvlist", "BENCH_CHANNEL,UCX_TLS,UCX_NET_DEVICES"]
        return [Command([*argv, str(program)], {**clean_environment(), **self._ucx(place)})]


def _intel(cache: Cache) -> Path:
    """oneCCL and Intel MPI, from the package index, in an environment of their own."""
    return cache.environment("oneccl", "oneccl-devel", "impi-rt", "impi-devel")


class IntelMpi(MpiPeer):
    """Intel MPI."""

    name = "intelmpi"
    title = "Intel MPI"

    def _variables(self, place: Place) -> dict[str, str]:
        if place.layout.hosts == 1:
            chosen = {"I_MPI_FABRICS": "shm"}
        else:
            inside = "shm:ofi" if place.layout.ranks_per_host > 1 else "ofi"
            chosen = {
                "I_MPI_FABRICS": inside,
                "FI_PROVIDER": "tcp",
                "FI_TCP_IFACE": "eth0",
                "I_MPI_HYDRA_IFACE": "eth0",
            }
        # Pinning would put all ranks of all hosts on the same core: each host believes it has the machine.
        return chosen | {"I_MPI_PIN": "0"}

    def settings(self, place: Place) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._variables(place).items())

    def commands(self, place: Place) -> list[Command]:
        home = _intel(place.cache)
        include, lib = home / "include", home / "lib"
        flags = (f"-I{include}", f"-L{lib}", f"-Wl,-rpath,{lib}", "-lmpi")
        program = place.cache.compiled("intelmpi-worker", "mpi_worker.cpp", ["g++"], *flags)
        argv = [*self._first(place).enter, str(home / "bin" / "mpiexec.hydra"), "-np", str(place.layout.ranks)]
        if place.network.remote_shell:
            argv += ["-launcher", "ssh", "-launcher-exec", str(place.network.remote_shell)]
            argv += ["-hosts", self._hosts(place, slots=False), "-ppn", str(place.layout.ranks_per_host)]
        env = clean_environment() | self._variables(place)
        env |= {"I_MPI_ROOT": str(home), "LD_LIBRARY_PATH": str(lib), "FI_PROVIDER_PATH": str(lib)}
        env["PATH"] = f"{home / 'bin'}{os.pathsep}{env['PATH']}"
        return [Command([*argv, str(program)], env)]


class OneCcl(Peer):
    """oneCCL's C++ interface on CPUs."""

    name = "oneccl"
    title = "oneCCL"

    def _variables(self, place: Place) -> dict[str, str]:
        # With a worker thread of its own it needed 10 ms for 4 KiB on two cores.
        chosen = {"CCL_ATL_TRANSPORT": "ofi", "FI_PROVIDER": "tcp", "CCL_WORKER_OFFLOAD": "0"}
        return chosen | {"CCL_PROCESS_LAUNCHER": "none", "CCL_LOG_LEVEL": "error", "FI_TCP_IFACE": place.interface}

    def settings(self, place: Place) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._variables(place).items())

    def commands(self, place: Place) -> list[Command]:
        home = _intel(place.cache)
        lib = home / "lib"
        flags = (f"-I{home / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}", "-l:libccl.so.1")
        program = place.cache.compiled("oneccl-worker", "ccl_worker.cpp", ["g++"], *flags)
        env = self._variables(place) | {"LD_LIBRARY_PATH": str(lib), "FI_PROVIDER_PATH": str(lib)}
        made = per_rank(place, [str(program)], env)
        for command in made:
            assert isinstance(command.env, dict)
            command.env["CCL_LOCAL_RANK"] = command.env["LOCAL_RANK"]
            command.env["CCL_LOCAL_SIZE"] = command.env["LOCAL_WORLD_SIZE"]
        return made


PEERS: tuple[Peer, ...] = (
    Smddp(),
    SmddpHalfWire(),
    Gloo(),
    OpenMpi(),
    OpenMpiAsSageMaker(),
    Mpich(),
    IntelMpi(),
    OneCcl(),
    DeepSpeed(),
)
OURS = ("smddp", "smddp-bf16")
