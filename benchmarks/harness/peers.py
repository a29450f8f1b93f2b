"""The libraries that are compared: how each is had, what settings it gets and why, and how its ranks are started. Here
those that torch reaches by itself; MPIs and oneCCL are in ``mpi_peers.py``, the list of all in ``catalogue.py``."""

from __future__ import annotations

import os
import random
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.build import SOURCES, Cache, UnavailableError, run_tool
from harness.job import Command
from harness.layout import Layout
from harness.network import Network
from harness.results import OURS_AGAIN

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


class SmddpAgain(Smddp):
    """The control: what two of the same differ by."""

    name = OURS_AGAIN
    title = "smddp again"


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
