"""Scripts of every generation: the API of releases 1.0 to 1.3, mpi4py's runner, old Lightning's choice of back end."""

from __future__ import annotations

import ast
import os
import subprocess
import time
from pathlib import Path

import pytest
import smdistributed.dataparallel
from rank_jobs import PYTHON, WORKERS, clean_environment, free_port, run_ranks

PACKAGE = Path(smdistributed.dataparallel.__file__).parent


@pytest.mark.parametrize("hosts", ["aa", "abb"])
def test_the_old_api_trains_as_gloo_does(hosts: str) -> None:
    for result in run_ranks("legacy_api", len(hosts), hosts=hosts):
        report = result.report
        assert len(report["warnings"]) == 1
        message, where = report["warnings"][0]
        assert "torch_smddp" in message
        assert where == "legacy_api.py", "the warning must point at the user's import"
        # Two ranks have one sum only; three may differ in the last bit, which momentum carries on.
        assert report["plain"] <= (0.0 if len(hosts) == 2 else 1e-6)
        assert report["accumulated"] <= (0.0 if len(hosts) == 2 else 1e-6)


def test_the_new_api_does_not_warn() -> None:
    script = "import smdistributed.dataparallel.torch.torch_smddp, smdistributed.dataparallel.torch, sys; " + (
        "assert 'smdistributed.dataparallel.torch.distributed' not in sys.modules"
    )
    subprocess.run([PYTHON, "-W", "error", "-c", script], check=True, env=clean_environment(), timeout=60)


@pytest.mark.parametrize("source", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_python_3_8_can_parse_it(source: Path) -> None:
    """The images of torch 1.12 have that Python. What types mean at run time is ruff's to check (py38, FA)."""
    ast.parse(source.read_text(), feature_version=(3, 8))


def mpirun(ranks: int, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
    names = {"MASTER_PORT": str(free_port()), **extra}
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
    # The launcher's own choice in containers, where processes may not read one another's memory.
    launcher += ["-mca", "btl_vader_single_copy_mechanism", "none", "-mca", "btl", "self,vader"]
    for name in names:
        launcher += ["-x", name]
    return subprocess.run(
        [*launcher, *command],
        env=clean_environment() | names,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_uncaught_exception_reaches_mpi4py_and_ends_the_job() -> None:
    """The other rank waits in a collective, half an hour if nobody tells it."""
    start = time.monotonic()
    done = mpirun(2, PYTHON, "-m", "mpi4py", str(WORKERS / "mpi_script.py"), "raise")
    assert done.returncode != 0
    assert "ValueError: the last rank gives up" in done.stdout
    assert time.monotonic() - start < 60


def test_under_mpirun_only_mpi_names_the_ranks() -> None:
    """As mmcv's `_init_dist_mpi` does it: OMPI_COMM_WORLD_* and nothing else."""
    done = mpirun(2, PYTHON, "-m", "mpi4py", str(WORKERS / "mpi_script.py"), "mmcv")
    assert done.returncode == 0, done.stdout
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 of 2, local 0: 3.0",
        "rank 1 of 2, local 1: 3.0",
    ]


@pytest.mark.parametrize("optimize", ["true", "false"])
def test_a_back_end_named_by_the_environment_alone(optimize: str) -> None:
    """Lightning before 1.5.10 passes PL_TORCH_DISTRIBUTED_BACKEND on to init_process_group, after the script's import.

    SMDATAPARALLEL_OPTIMIZE_SDP chose between fast all-reduce and fast all-gather; here both always are.
    """
    env = {"PL_TORCH_DISTRIBUTED_BACKEND": "smddp", "SMDATAPARALLEL_OPTIMIZE_SDP": optimize}
    for result in run_ranks("old_lightning", 2, env=env):
        assert result.report == {"backend": "smddp", "sum": 3.0, "gathered": [0.0, 1.0]}


def test_what_hugging_face_asks_for() -> None:
    """Transformers: find_spec, then the local rank from the environment after the import."""
    script = (
        "import importlib.util, os; assert importlib.util.find_spec('smdistributed');"
        "import smdistributed.dataparallel.torch.torch_smddp; print(int(os.getenv('SMDATAPARALLEL_LOCAL_RANK')))"
    )
    env = clean_environment() | {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "h"}
    done = subprocess.run([PYTHON, "-c", script], env=env, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1"]


def test_the_tools_are_installed_beside_python() -> None:
    assert os.access(Path(PYTHON).with_name("smddprun"), os.X_OK)
