"""MPIs, each as a C++ program and as a back end of torch.distributed, and oneCCL."""

from __future__ import annotations

import os
import shutil
import sys
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.build import SOURCES, Cache, UnavailableError, run_tool
from harness.job import Command
from harness.network import Host
from harness.peers import Peer, Place, clean_environment, per_rank
from harness.results import THROUGH_TORCH


@dataclass(frozen=True)
class Compiler:
    """How programs are compiled for an MPI."""

    argv: tuple[str, ...]
    flags: tuple[str, ...] = ()


class MpiPeer(Peer):
    """An MPI.

    Args:
        through_torch: whether its ranks are Python programs that reach it through torch, and not C++ programs.
    """

    def __init__(self, *, through_torch: bool = False) -> None:
        self.through_torch = through_torch
        if through_torch:
            self.name += THROUGH_TORCH
            self.title += " through torch"

    @abstractmethod
    def variables(self, place: Place) -> dict[str, str]:
        """Its settings."""

    @abstractmethod
    def compiler(self, place: Place) -> Compiler:
        """What compiles for it.

        Raises:
            UnavailableError: it is not installed.
        """

    @abstractmethod
    def launch(self, place: Place, rank: list[str], env: Mapping[str, str]) -> Command:
        """Its launcher, for ranks that run `rank` with `env` in their environment."""

    def settings(self, place: Place) -> str:
        chosen = ", ".join(f"{name}={value}" for name, value in self.variables(place).items())
        return f"as a back end of torch on the calling thread, {chosen}" if self.through_torch else chosen

    def commands(self, place: Place) -> list[Command]:
        compiler = self.compiler(place)
        if self.through_torch:
            env = {
                "BENCH_PAYLOAD": str(place.cache.payload()),
                "BENCH_TORCH_MPI": str(self._extension(place.cache, compiler)),
                "OMP_NUM_THREADS": "1",
            }
            return [self.launch(place, [sys.executable, str(SOURCES / "torch_worker.py"), "mpi"], env)]
        base = self.name.split("-")[0]
        program = place.cache.compiled(f"{base}-worker", "mpi_worker.cpp", list(compiler.argv), *compiler.flags)
        return [self.launch(place, [str(program)], {})]

    def _extension(self, cache: Cache, compiler: Compiler) -> Path:
        """The folder with the compiled module ``torch_mpi``."""
        import torch
        from torch.utils.cpp_extension import include_paths

        source = SOURCES / "torch_mpi.cpp"
        lib = Path(torch.__file__).parent / "lib"
        python = run_tool([sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('include'))"], "Python")
        includes = [f"-isystem{folder}" for folder in [*include_paths(), python.strip()]]
        argv = [*compiler.argv, "-std=c++20", "-O2", "-shared", "-fPIC", *includes, str(source)]
        libraries = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch_python", "-ltorch_cpu", "-lc10", *compiler.flags]

        def make(target: Path) -> None:
            target.mkdir()
            run_tool([*argv, "-o", str(target / "torch_mpi.so"), *libraries], f"compiling {source.name}")

        base = self.name.removesuffix(THROUGH_TORCH).split("-")[0]
        return cache.made(f"{base}-torch", f"{argv}{libraries}{torch.__version__}{source.read_text()}", make)

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

    def variables(self, place: Place) -> dict[str, str]:
        # ob1, because the UCX and OFI layers were slower here; cma lets a rank read another's memory.
        chosen = {"pml": "ob1", "btl": "self,vader", "btl_vader_single_copy_mechanism": self.single_copy}
        if place.layout.hosts > 1:
            chosen["btl"] = "self,tcp" + (",vader" if place.layout.ranks_per_host > 1 else "")
            chosen |= {"btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0", "plm_rsh_no_tree_spawn": "1"}
        if place.oversubscribed:
            chosen["mpi_yield_when_idle"] = "1"
        return chosen

    def settings(self, place: Place) -> str:
        return super().settings(place) + ", not bound to cores"

    def compiler(self, place: Place) -> Compiler:  # noqa: ARG002 - the same everywhere
        self._need("mpirun.openmpi", "openmpi-bin")
        self._need("mpicxx.openmpi", "libopenmpi-dev")
        # Debian 12's openmpi-bin has the compiler, but not what it includes.
        folders = run_tool(["mpicxx.openmpi", "--showme:incdirs"], "asking mpicxx.openmpi for its headers").split()
        if not any(Path(folder, "mpi.h").exists() for folder in folders):
            raise UnavailableError("mpicxx.openmpi has no mpi.h (Debian: apt-get install libopenmpi-dev)")
        return Compiler(("mpicxx.openmpi",))

    def launch(self, place: Place, rank: list[str], env: Mapping[str, str]) -> Command:
        argv = [*self._first(place).enter, "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]
        argv += ["--bind-to", "none", "-np", str(place.layout.ranks)]
        for name in ("BENCH_CHANNEL", *env):
            argv += ["-x", name]
        if place.network.remote_shell:
            argv += ["--mca", "plm_rsh_agent", str(place.network.remote_shell)]
            argv += ["--host", self._hosts(place, slots=True)]
        for name, value in self.variables(place).items():
            argv += ["--mca", name, value]
        return Command([*argv, *rank], {**clean_environment(), **env})


class OpenMpiAsSageMaker(OpenMpi):
    """Open MPI as SageMaker's launcher starts it: its containers do not allow one process to read another's memory."""

    name = "openmpi-sagemaker"
    title = "Open MPI as SageMaker starts it"
    single_copy = "none"

    def compiler(self, place: Place) -> Compiler:
        if place.layout.ranks_per_host == 1:
            raise UnavailableError("differs from Open MPI only where ranks share a host")
        return super().compiler(place)


class Mpich(MpiPeer):
    """Debian's MPICH (ch4:ucx)."""

    name = "mpich"
    title = "MPICH"

    def variables(self, place: Place) -> dict[str, str]:
        if place.layout.hosts == 1:
            return {"UCX_TLS": "self,posix,cma"}
        inside = ",posix,cma" if place.layout.ranks_per_host > 1 else ""
        return {"UCX_TLS": f"tcp,self{inside}", "UCX_NET_DEVICES": "eth0"}

    def settings(self, place: Place) -> str:
        return "ch4:ucx, " + super().settings(place)

    def compiler(self, place: Place) -> Compiler:  # noqa: ARG002 - the same everywhere
        self._need("mpirun.mpich", "mpich")
        self._need("mpicxx.mpich", "libmpich-dev")
        return Compiler(("mpicxx.mpich",))

    def launch(self, place: Place, rank: list[str], env: Mapping[str, str]) -> Command:
        env = {**env, **self.variables(place)}
        argv = [*self._first(place).enter, "mpirun.mpich", "-np", str(place.layout.ranks)]
        if place.network.remote_shell:
            argv += ["-launcher", "ssh", "-launcher-exec", str(place.network.remote_shell), "-iface", "eth0"]
            argv += ["-hosts", self._hosts(place, slots=True)]
        argv += ["-genvlist", ",".join(["BENCH_CHANNEL", *env])]
        return Command([*argv, *rank], {**clean_environment(), **env})


def intel(cache: Cache) -> Path:
    """oneCCL and Intel MPI, from the package index, in an environment of their own."""
    return cache.environment("oneccl", "oneccl-devel", "impi-rt", "impi-devel")


class IntelMpi(MpiPeer):
    """Intel MPI."""

    name = "intelmpi"
    title = "Intel MPI"

    def variables(self, place: Place) -> dict[str, str]:
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

    def compiler(self, place: Place) -> Compiler:
        home = intel(place.cache)
        include, lib = home / "include", home / "lib"
        return Compiler(("g++",), (f"-I{include}", f"-L{lib}", f"-Wl,-rpath,{lib}", "-lmpi"))

    def launch(self, place: Place, rank: list[str], env: Mapping[str, str]) -> Command:
        home = intel(place.cache)
        lib = home / "lib"
        argv = [*self._first(place).enter, str(home / "bin" / "mpiexec.hydra"), "-np", str(place.layout.ranks)]
        if place.network.remote_shell:
            argv += ["-launcher", "ssh", "-launcher-exec", str(place.network.remote_shell)]
            argv += ["-hosts", self._hosts(place, slots=False), "-ppn", str(place.layout.ranks_per_host)]
        chosen = {**clean_environment(), **env, **self.variables(place)}
        chosen |= {"I_MPI_ROOT": str(home), "LD_LIBRARY_PATH": str(lib), "FI_PROVIDER_PATH": str(lib)}
        chosen["PATH"] = f"{home / 'bin'}{os.pathsep}{chosen['PATH']}"
        return Command([*argv, *rank], chosen)


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
        home = intel(place.cache)
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
