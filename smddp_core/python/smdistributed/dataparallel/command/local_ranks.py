"""Starts this command as several ranks on this host, for those who have no launcher at hand."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

_NAMES = ("RANK", "LOCAL_RANK", "SMDATAPARALLEL_LOCAL_RANK")


def run(ranks: int, arguments: list[str]) -> int:
    """Run ``smddp ARGUMENTS`` as ``ranks`` ranks that meet in a file; the exit code is 1 if any failed, else 0."""
    with tempfile.TemporaryDirectory(prefix="smddp-") as folder:
        command = [sys.executable, "-m", "smdistributed.dataparallel.command", *arguments, "--store", f"{folder}/store"]
        processes = [subprocess.Popen(command, env=_environment(rank, ranks)) for rank in range(ranks)]
        try:
            return _wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _environment(rank: int, ranks: int) -> dict[str, str]:
    own = dict.fromkeys(_NAMES, str(rank))
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
    # As torchrun does: ranks that each use all cores for arithmetic would disturb one another.
    return {"OMP_NUM_THREADS": "1", **os.environ, **own, **sizes, "GROUP_RANK": "0"}


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """One that fails leaves the others waiting for it: their end is the caller's to bring about."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed:
            return 1
        if None not in codes:
            return 0
        time.sleep(0.05)
