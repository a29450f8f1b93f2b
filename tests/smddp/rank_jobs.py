"""Runs a worker script as several ranks, each its own process, and never longer than it may take."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKERS = Path(__file__).parent / "workers"
# Whose torch and smddp the ranks use: torch_releases.py names that of another environment.
PYTHON = os.environ.get("SMDDP_TEST_PYTHON") or sys.executable
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


@dataclass(frozen=True)
class Rank:
    """How one rank ended."""

    rank: int
    returncode: int
    output: str
    seconds: float

    @property
    def report(self) -> dict[str, Any]:
        """The JSON object in the worker's last line."""
        lines = self.output.strip().splitlines()
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
    prefix: Callable[[int], Sequence[str]] = lambda rank: (),
) -> list[Rank]:
    """Starts `size` ranks of `workers/<worker>.py` by the env:// rendezvous and returns how they ended, in rank order.

    `hosts` is one letter a rank: ranks of different letters believe to be on different hosts. `prefix` goes in front of
    a rank's command: `ip netns exec`, to put it on one. A rank that fails and is not in `may_fail`, or is not done
    after `limit` seconds, fails the test with the output of all. Ranks in `stopped` are killed when the
    others have ended.
    """
    common = clean_environment() | {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    common |= dict(env or {})
    start = time.monotonic()
    processes = []
    for rank in range(size):
        own = common | place(rank, hosts or "a" * size)
        if hosts:
            own["SMDDP_HOST_ID"] = hosts[rank]
        command = [*prefix(rank), PYTHON, str(WORKERS / f"{worker}.py"), *arguments]
        processes.append(
            subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    results = []
    hung = []
    for rank in [*(r for r in range(size) if r not in stopped), *stopped]:
        process = processes[rank]
        if rank in stopped:
            process.kill()
        try:
            output, _ = process.communicate(timeout=max(limit - (time.monotonic() - start), 0.1))
        except subprocess.TimeoutExpired:
            hung.append(rank)
            process.kill()
            output, _ = process.communicate()
        results.append(Rank(rank, process.returncode, output, time.monotonic() - start))
    results.sort(key=lambda one: one.rank)
    story = "\n".join(f"--- rank {one.rank}: exit {one.returncode}\n{one.output}" for one in results)
    assert not hung, f"ranks {hung} were still running after {limit} s\n{story}"
    failed = [one.rank for one in results if one.returncode != 0 and one.rank not in may_fail]
    assert not failed, f"ranks {failed} failed\n{story}"
    return results
