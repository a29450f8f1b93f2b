"""What the variables of launchers mean."""

from __future__ import annotations

import pytest
from smdistributed.modelparallel.torch.exceptions import SMPConfigError
from smdistributed.modelparallel.torch.launch import Launch, from_environ

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MPI = {
    f"OMPI_COMM_WORLD_{name}": value
    for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "5814", strict=True)
}
MASTER = {"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"}


def test_variables_of_torchrun() -> None:
    assert from_environ(TORCHRUN | MASTER) == Launch(3, 8, 1, 2, "algo-1", 7777)


def test_variables_of_mpirun() -> None:
    assert from_environ(MPI | MASTER) == Launch(5, 8, 1, 4, "algo-1", 7777)


def test_mpirun_counts_unless_torchrun_runs_inside_it() -> None:
    both = TORCHRUN | MPI | MASTER
    assert from_environ(both).rank == 5
    assert from_environ(both | {"TORCHELASTIC_RUN_ID": "job"}).rank == 3


def test_without_a_launcher_there_is_one_rank() -> None:
    assert from_environ({}) == Launch(0, 1, 0, 1, "127.0.0.1", 29500)


def test_without_local_names_all_ranks_are_here() -> None:
    assert from_environ({"RANK": "1", "WORLD_SIZE": "2"}) == Launch(1, 2, 1, 2, "127.0.0.1", 29500)


def test_ranks_of_one_mpirun_find_one_port_and_two_jobs_hardly_do() -> None:
    one_host = {name: "1" if name.endswith("LOCAL_RANK") else value for name, value in MPI.items()}
    one_host["OMPI_COMM_WORLD_LOCAL_SIZE"] = "8"
    ports = {from_environ(one_host | {"PMIX_NAMESPACE": f"prterun-host-{job}@1"}).master_port for job in range(50)}
    assert len(ports) > 45
    assert all(20000 <= port < 32000 for port in ports)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (MPI, "MASTER_ADDR is not set and the ranks are on several hosts"),
        (TORCHRUN | MASTER | {"RANK": "x"}, "RANK is 'x': it must be a whole number"),
        (TORCHRUN | MASTER | {"RANK": "8"}, "RANK is 8: it must be less than 8"),
        (TORCHRUN | MASTER | {"LOCAL_RANK": "2"}, "LOCAL_RANK is 2: it must be less than 2"),
        (TORCHRUN | MASTER | {"MASTER_PORT": "http"}, "MASTER_PORT is 'http': it must be a whole number"),
    ],
)
def test_variables_that_do_not_fit_get_one_sentence(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(SMPConfigError, match=sentence):
        from_environ(variables)
