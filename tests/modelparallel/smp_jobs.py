"""Runs a function, or a script, as several ranks, each its own process, and never longer than it may take.

    def body(scale: int) -> object: ...  # at the top level of a test file; runs on every rank

    ranks = run_ranks(body, 4, 10)  # -> list[Rank], in rank order; a failure fails the test with all output
    assert [rank.report for rank in ranks] == ...

Not called rank_jobs: pytest has the helpers of all folders in one process, and tests/smddp has one of that name.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from forked import ForkedRank, Zygote

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "modelparallel" / "python"
# What a rank of an earlier launcher may have left in this process must not reach the ranks.
_FOREIGN = ("OMPI_", "PMI", "PRTE_", "SLURM_", "SM_", "SMP_", "NCCL_", "GLOO_", "MASTER_", "TORCHELASTIC_")
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


Process = Union["subprocess.Popen[bytes]", ForkedRank]


@functools.cache
def _zygote() -> Zygote:
    # An optimizer's first step imports torch._dynamo, for a second.
    return Zygote(clean_environment(), ["smdistributed.modelparallel.torch", "torch._dynamo"])


@dataclass(frozen=True)
class Rank:
    """How one rank ended; `report` is what its function returned (None from a script)."""

    rank: int
    returncode: int
    stdout: str
    stderr: str
    report: Any


def clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _RANKS and not name.startswith(_FOREIGN)}
    paths = [str(SOURCES), str(HERE), str(HERE.parent / "forking"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def free_port() -> int:
    """A port below those that the kernel hands out by itself, so that no connection takes it before rank 0 listens."""
    for port in random.sample(range(12000, 20000), 100):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise AssertionError("no free port")


def rank_variables(launcher: str, rank: int, size: int) -> dict[str, str]:
    """What "torchrun" or "mpi" (Open MPI) tells a rank of its place on the only host."""
    names = {
        "torchrun": ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        "mpi": [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
    }[launcher]
    return dict(zip(names, map(str, (rank, size, rank, size)), strict=True))


def run_ranks(
    target: Callable[..., Any] | Path,
    size: int,
    *arguments: Any,
    launcher: str = "torchrun",
    config: str | None = None,
    env: Mapping[str, str] | None = None,
    may_fail: Sequence[int] = (),
    limit: float = 120,
) -> list[Rank]:
    """Starts `size` ranks and returns how they ended, in rank order.

    target: a function at the top level of a module (its arguments and result are pickled), or the path of a script (its
    arguments are strings). launcher: whose variables the ranks get, "torchrun" or "mpi"; "mpirun" starts them by it.
    config: the value of SM_HP_MP_PARAMETERS. A rank that fails and is not in `may_fail`, or is not done after `limit`
    seconds, fails the test with the output of all; none outlives this call.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        home = Path(folder)
        command = _command(target, arguments, home)
        common = clean_environment() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        common |= {"SM_HP_MP_PARAMETERS": config} if config is not None else {}
        common |= dict(env or {})
        if launcher == "mpirun":
            options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            ended = _wait([_start(["mpirun", *options, "-np", str(size), *command], common, home, 0)], limit)
            ended = ended * size
        else:
            ended = _wait(
                [_start(command, common | rank_variables(launcher, rank, size), home, rank) for rank in range(size)],
                limit,
            )
        ranks = [_rank(home, rank, code, 0 if launcher == "mpirun" else rank) for rank, code in enumerate(ended)]
    story = "\n".join(f"--- rank {one.rank}: exit {one.returncode}\n{one.stdout}{one.stderr}" for one in ranks)
    hung = [one.rank for one in ranks if one.returncode == -9 and one.rank not in may_fail]
    assert not hung, f"ranks {hung} were killed, if not by the test then because {limit} s were over\n{story}"
    failed = [one.rank for one in ranks if one.returncode != 0 and one.rank not in may_fail]
    assert not failed, f"ranks {failed} failed\n{story}"
    return ranks


def _command(target: Callable[..., Any] | Path, arguments: Sequence[Any], home: Path) -> list[str]:
    if isinstance(target, Path):
        return [sys.executable, str(target), *map(str, arguments)]
    source = inspect.getsourcefile(target)
    assert source is not None
    call = home / "call"
    call.write_bytes(pickle.dumps((source, target.__qualname__, arguments)))
    return [sys.executable, str(HERE / "rank_main.py"), str(call)]


def _start(command: Sequence[str], env: Mapping[str, str], home: Path, index: int) -> Process:
    if command[0] == sys.executable:
        return _zygote().start(command[1:], env, home / f"stdout.{index}", home / f"stderr.{index}")
    # Files and not pipes: a rank must never wait for this process to read.
    with (home / f"stdout.{index}").open("wb") as out, (home / f"stderr.{index}").open("wb") as err:
        return subprocess.Popen(command, env=env, stdout=out, stderr=err, start_new_session=True)


def _wait(processes: Sequence[Process], limit: float) -> list[int]:
    deadline = time.monotonic() + limit
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.01))
    finally:
        for process in processes:
            # The whole session: a rank's own children (loaders) too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
    return [process.wait() for process in processes]


def _rank(home: Path, rank: int, code: int, output: int) -> Rank:
    report = home / f"report.{rank}"
    return Rank(
        rank,
        code,
        (home / f"stdout.{output}").read_text(errors="replace"),
        (home / f"stderr.{output}").read_text(errors="replace"),
        pickle.loads(report.read_bytes()) if report.exists() else None,
    )
