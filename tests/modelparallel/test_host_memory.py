"""Memory that a thread frees is the system's again, not the thread's (server/host_memory.py)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "modelparallel" / "python"

# Two tensors, the smaller freed first: by itself glibc then keeps what is smaller than the larger one for itself.
BODY = """
import sys
import torch
from smdistributed.modelparallel.torch.server.host_memory import LARGE_BYTES, return_large_blocks
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
done = return_large_blocks() if sys.argv[1] == "1" else None
torch.ones(6 * LARGE_BYTES // 4)  # freed: glibc's own limit is now above
before = resident()
kept = [torch.ones(LARGE_BYTES // 2) for _ in range(16)]
del kept[:-1]  # the last one lies above the others
print(done, (resident() - before) // (LARGE_BYTES * 2))
"""


def run(*arguments: str, **env: str) -> list[str]:
    argv = [sys.executable, "-c", textwrap.dedent(BODY), *arguments]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=True, timeout=120, env={"PYTHONPATH": str(SOURCES), **env}
    )
    return done.stdout.split()


def test_freed_tensors_are_returned() -> None:
    assert run("1") == ["True", "1"]


def test_without_it_they_are_kept() -> None:
    """That the test above shows something: as glibc does by itself."""
    assert int(run("0")[1]) > 10


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432")],
)
def test_the_environment_wins(name: str, value: str) -> None:
    assert run("1", **{name: value})[0] == "False"
