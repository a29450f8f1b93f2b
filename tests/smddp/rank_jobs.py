"""Runs a worker script as several ranks, each its own process, and never longer than it may take.

A rank is forked from a process that has torch already, where nothing about it can tell: importing torch took most of
the time of these tests.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
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

sys.path.append(str(Path(__file__).parents[1] / "forking"))
from forked import ForkedRank, Zygote

WORKERS = Path(__file__).parent / "workers"
# Whose torch and smddp the ranks use: torch_releases.py names that of another environment.
PYTHON = os.environ.get("SMDDP_TEST_PYTHON") or sys.executable
# Settings for each way that messages can go inside a host.
INSIDE = {
    "slots": {"SMDDP_SHM_MAILBOXES": "never", "SMDDP_SHM_DIRECT": "never"},
    "mailboxes": {"SMDDP_SHM_MAILBOXES": "always", "SMDDP_SHM_DIRECT": "never"},
    "direct": {"SMDDP_SHM_MAILBOXES": "never", "SMDDP_SHM_DIRECT": "always"},
}
# What a rank of an earlier launcher may have left in this process must not reach the workers.
_FOREIGN = (
    "OMPI_",
    "PMI_",
    "MPI_",
    "SLURM_",
    "SM_",
    "SMDDP_",
    "SMDATAPARALLEL_",
    "NCCL_",
    "GLOO_",
    "MASTER_",
    "TORCHELASTIC_",
)
# Read when ranks ask for them. Others (of torch, OpenMP, Python) are read while torch is imported or before.
_LATE = ("SMDDP_", "SM_", "SMDATAPARALLEL_", "GLOO_", "MASTER_", "PL_")
Process = Union["subprocess.Popen[bytes]", ForkedRank]


@functools.cache
def _zygote(*more: str) -> Zygote:
    return Zygote(clean_environment(), ["numpy", "torch", "torch.distributed", "torch._dynamo", *more])


@dataclass(frozen=True)
class Rank:
    """How one rank ended."""

    rank: int
    returncode: int
    output: str
    seconds: float

    @property
    def report(self) -> dict[str, Any]:
        """The JSON object in the worker's last line, but for what gloo's threads have said after it."""
        lines = [line for line in self.output.splitlines() if line.startswith("{")]
        try:
            found: dict[str, Any] = json.loads(lines[-1])
        except (IndexError, json.JSONDecodeError):
            raise AssertionError(
                f"rank {self.rank} ended with {self.returncode} and no report:\n{self.output}"
            ) from None
        return found


def clean_environment() -> dict[str, str]:
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    kept = {name: value for name, value in os.environ.items() if name not in ranks and not name.startswith(_FOREIGN)}
    return kept | {"OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """A port below those that the kernel hands out by itself, so that no connection takes it before rank 0 listens."""
    for port in random.sample(range(20000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise AssertionError("no free port")


def place(rank: int, hosts: str) -> dict[str, str]:
    """What a launcher tells a rank of its place; `hosts` as for run_ranks."""
    host = hosts[rank]
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(hosts[:rank].count(host)),
        "LOCAL_WORLD_SIZE": str(hosts.count(host)),
        "GROUP_RANK": str(sorted(set(hosts)).index(host)),
    }


def run_ranks(
    worker: str,
    size: int,
    *arguments: str,
    hosts: str = "",
    env: Mapping[str, str] | None = None,
    may_fail: Sequence[int] = (),
    stopped: Sequence[int] = (),
    limit: float = 120,
    imports: Sequence[str] = (),
    prefix: Callable[[int], Sequence[str]] = lambda rank: (),
) -> list[Rank]:
    """Starts `size` ranks of `workers/<worker>.py` by the env:// rendezvous and returns how they ended, in rank order.

    `hosts` is one letter a rank: ranks of different letters believe to be on different hosts. `imports`: modules that
    take the worker long to import. `prefix` goes in front of a rank's command: `ip netns exec`, to put it on a host. A
    rank that fails and is not in `may_fail`, or is not done after `limit` seconds, fails the test with the output of
    all. Ranks in `stopped` are killed when the others have ended.
    """
    common = clean_environment() | {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    common |= dict(env or {})
    # Whoever runs these tests for another torch has it in another Python.
    forks = sys.executable == PYTHON and all(name.startswith(_LATE) for name in env or {})
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        processes = []
        for rank in range(size):
            own = common | place(rank, hosts or "a" * size)
            if hosts:
                own["SMDDP_HOST_ID"] = hosts[rank]
            command = [str(WORKERS / f"{worker}.py"), *arguments]
            processes.append(_start([*prefix(rank)], command, own, Path(folder) / str(rank), forks, imports))
        results = []
        hung = []
        for rank in [*(r for r in range(size) if r not in stopped), *stopped]:
            if rank in stopped:
                processes[rank].kill()
            try:
                code = processes[rank].wait(timeout=max(limit - (time.monotonic() - start), 0.1))
            except subprocess.TimeoutExpired:
                hung.append(rank)
                processes[rank].kill()
                code = processes[rank].wait()
            output = (Path(folder) / str(rank)).read_text(errors="replace")
            results.append(Rank(rank, code, output, time.monotonic() - start))
    results.sort(key=lambda one: one.rank)
    story = "\n".join(f"--- rank {one.rank}: exit {one.returncode}\n{one.output}" for one in results)
    assert not hung, f"ranks {hung} were still running after {limit} s\n{story}"
    failed = [one.rank for one in results if one.returncode != 0 and one.rank not in may_fail]
    assert not failed, f"ranks {failed} failed\n{story}"
    return results


def _start(
    prefix: list[str], command: list[str], env: Mapping[str, str], output: Path, forks: bool, imports: Sequence[str]
) -> Process:
    if forks and not prefix:
        return _zygote(*imports).start(command, env, output, output)
    # A file and not a pipe: a rank must never wait for this process to read.
    with output.open("wb") as file:
        return subprocess.Popen([*prefix, PYTHON, *command], env=env, stdout=file, stderr=subprocess.STDOUT)
