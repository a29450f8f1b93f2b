"""`train` in the image, as SageMaker and people start it."""

from pathlib import Path
from typing import Any

import pytest
from containers import Run
from small_job import train

from shoal.image.versions import Row

pytestmark = pytest.mark.image

MODEL_PARALLEL = """\
import os
import smdistributed.modelparallel.torch as smp
smp.init()
if smp.pp_rank() == smp.pp_size() - 1:
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "stages"), "w") as file:
        file.write(f"{smp.pp_size()} stages, {smp.num_microbatches()} micro-batches")
smp.barrier()
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="no-network"),
        pytest.param({"network_mode": "bridge"}, id="network"),
        pytest.param({"user": "1000:1000"}, id="not-root"),
        pytest.param({"read_only": True, "tmpfs": {"/tmp": ""}}, id="read-only"),
        pytest.param(
            {"read_only": True, "tmpfs": {"/tmp": ""}, "user": "1000:1000", "cap_drop": ["ALL"]}, id="all-at-once"
        ),
        pytest.param({"init": True}, id="behind-an-init"),
    ],
)
def test_a_job_of_two_ranks(run: Run, tmp_path: Path, options: dict[str, Any]) -> None:
    ml = tmp_path / "ml"
    done = train(run, ml, **options)
    assert done.rc == 0, done
    assert (ml / "model" / "total").read_text() == "3.0"
    assert not (ml / "output" / "failure").exists()


def test_a_job_of_a_model_in_two_parts(run: Run, row: Row, tmp_path: Path) -> None:
    """As SageMaker's SDK asks for it: MPI, and `mp_parameters` among the hyperparameters."""
    if not row.smp:
        pytest.skip("this torch is older than smp")
    ml = tmp_path / "ml"
    asked = {"mp_parameters": '{"partitions": 2, "microbatches": 4}'}
    done = train(run, ml, asked, script=MODEL_PARALLEL, launcher={"sagemaker_mpi_enabled": "true"})
    assert done.rc == 0, done
    assert (ml / "model" / "stages").read_text() == "2 stages, 4 micro-batches"


def test_a_job_s_exit_code_and_failure_file(run: Run, tmp_path: Path) -> None:
    ml = tmp_path / "ml"
    done = train(run, ml, {"exit_code": "7"})
    assert done.rc == 7, done
    assert (ml / "output" / "failure").read_text() != ""
    assert not (ml / "model" / "total").exists()


def test_train_without_a_job_fails_with_one_line(run: Run) -> None:
    done = run(["sh", "-c", "train; code=$?; cat /opt/ml/output/failure; exit $code"])
    assert done.rc != 0
    assert "Traceback" not in done.err
    assert "/opt/ml/input/config/hyperparameters.json: not found" in done.out


def test_no_command_is_a_shell_that_reads_what_it_is_given(run: Run) -> None:
    done = run()
    assert (done.rc, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize(
    ("command", "rc", "out"),
    [
        (["python", "-c", "print('two  words')"], 0, "two  words\n"),
        (["sh", "-c", 'echo "$1"; exit 3', "sh", "a 'quoted' $word"], 3, "a 'quoted' $word\n"),
        (["pwd"], 0, "/opt/ml/code\n"),
    ],
)
def test_any_command_is_run_as_it_is(run: Run, command: list[str], rc: int, out: str) -> None:
    done = run(command)
    assert (done.rc, done.out) == (rc, out), done.err


def test_a_command_that_is_not_there_says_so(run: Run) -> None:
    done = run(["sh", "-c", "no-such-command"])
    assert done.rc == 127
    assert "no-such-command" in done.err
