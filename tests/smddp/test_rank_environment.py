"""The rank environment, from every launcher's variables."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_jobs import clean_environment
from smdistributed.dataparallel.rank_environment import rank_environment

SMDDPRUN = str(Path(sys.executable).with_name("smddprun"))


def expected(
    rank: int, size: int, local: int, locals_: int, host: int, address: str, port: str = "7777"
) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(locals_),
        "GROUP_RANK": str(host),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "SMDATAPARALLEL_LOCAL_RANK": str(local),
    }


OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
TORCHRUN = expected(3, 4, 1, 2, 1, "algo-1", "29400")
SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_STEP_NODELIST": "node[03-05,9],other",
}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {"SMDATAPARALLEL_LOCAL_RANK": "0"}),
        ({k: v for k, v in TORCHRUN.items() if not k.startswith("SM")}, {"SMDATAPARALLEL_LOCAL_RANK": "1"}),
        (TORCHRUN, {}),
        (TORCHRUN | {"LOCAL_RANK": "0"}, {"SMDATAPARALLEL_LOCAL_RANK": "0"}),
        (OMPI | {"SMDATAPARALLEL_SERVER_ADDR": "algo-1", "SM_MASTER_ADDR": "x"}, expected(3, 4, 1, 2, 1, "algo-1")),
        (OMPI | {"SM_MASTER_ADDR": "algo-2"}, expected(3, 4, 1, 2, 1, "algo-2")),
        (
            OMPI | {"SMDATAPARALLEL_SERVER_ADDR": "algo-1", "SMDATAPARALLEL_SERVER_PORT": "7592"},
            expected(3, 4, 1, 2, 1, "algo-1", "7592"),
        ),
        (
            OMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
            expected(3, 4, 3, 4, 0, "127.0.0.1"),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            expected(1, 2, 1, 2, 0, "127.0.0.1"),
        ),
        (SLURM, expected(2, 3, 0, 1, 1, "node03")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, {"SMDATAPARALLEL_LOCAL_RANK": "0"}),
        # What is set wins, and a launcher that speaks of another rank is not believed.
        (OMPI | {"MASTER_ADDR": "m", "MASTER_PORT": "1"}, expected(3, 4, 1, 2, 1, "m", "1") | {"MASTER_ADDR": ""}),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "OMPI_COMM_WORLD_RANK": "0"},
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_PORT": "7777"}
            | {"SMDATAPARALLEL_LOCAL_RANK": "1"},
        ),
        ({"RANK": "5", "WORLD_SIZE": "8"}, {"MASTER_PORT": "7777", "SMDATAPARALLEL_LOCAL_RANK": "0"}),
    ],
)
def test_what_is_missing_is_added(given: dict[str, str], added: dict[str, str]) -> None:
    wanted = {name: value for name, value in added.items() if name not in given or name.startswith("SMDATA")}
    assert rank_environment(given) == wanted


def test_a_node_that_is_no_number_has_no_known_tasks() -> None:
    """``str.isdigit`` takes it, ``int`` does not."""
    assert "LOCAL_WORLD_SIZE" not in rank_environment(SLURM | {"SLURM_NODEID": "²"})


def test_it_is_idempotent() -> None:
    once = OMPI | rank_environment(OMPI)
    assert rank_environment(once) == {}


def test_smddprun_sets_and_execs() -> None:
    script = "import os; print(os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['MASTER_ADDR'], os.getpid())"
    environment = clean_environment() | OMPI | {"SM_MASTER_ADDR": "algo-1"}
    command = [SMDDPRUN, sys.executable, "-c", script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=20)
    assert output.split() == ["3", "1", "algo-1", str(process.pid)], "the command must take the launcher's process"


def test_smddprun_hands_on_the_exit_code_and_starts_fast() -> None:
    assert subprocess.run([SMDDPRUN, "sh", "-c", "exit 7"], check=False).returncode == 7
    assert subprocess.run([SMDDPRUN, "/no/such/command"], check=False, capture_output=True).returncode == 127
    assert subprocess.run([SMDDPRUN], check=False, capture_output=True).returncode == 2
    start = time.monotonic()
    subprocess.run([SMDDPRUN, "true"], check=True)
    assert time.monotonic() - start < 1.0, "importing torch takes longer than this"
