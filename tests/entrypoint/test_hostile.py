"""Whatever stands in a job's files and variables: one clear line, a failure file, another exit code than 0.

The same examples in every run; EXPLORE=1 tries others, `--hypothesis-seed` the same others again.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from shoal_entrypoint.control import leader
from shoal_entrypoint.main import main

_CLONE_NEWNET = 0x40000000

# Words that mean something somewhere: a random text would never be one.
WORDS = st.sampled_from(
    [
        *("algo-1", "algo-2", "", " ", "\0", "../../etc", "/", "-", "true", '"true"', "True", "[]", "{}", "null"),
        *("NaN", "1e999", "-1", "0", "9" * 5000, "train.py", "train.sh", "setup.py", "s3://b/k", "$(touch x)"),
        *("'", '"', "\ud800", "é", "a\nb", "[" * 3000, "lo", "eth0", "mpi", "-m train"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FLAGS = (
    "sagemaker_mpi_enabled",
    "sagemaker_mpi_num_of_processes_per_host",
    "sagemaker_mpi_num_processes",
    "sagemaker_mpi_custom_mpi_options",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_distributed_dataparallel_custom_mpi_options",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_torch_distributed_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_parameter_server_enabled",
    "sagemaker_command",
    "sagemaker_command_arguments",
    "sagemaker_distribution_instance_groups",
    "sagemaker_instance_type",
    "sagemaker_submit_directory",
    "sagemaker_container_log_level",
    "sagemaker_job_name",
    "sagemaker_region",
    "sagemaker_s3_output",
    "mp_parameters",
    "lr",
    "k",
)
# Mostly right, so that what is wrong is met deep inside as well.
HYPERPARAMETERS = st.fixed_dictionaries(
    {"sagemaker_program": st.just("train.py") | JSON}, optional={flag: st.just("true") | JSON for flag in FLAGS}
)
GROUP = st.fixed_dictionaries(
    {"instance_group_name": st.just("g") | JSON, "hosts": st.just(["algo-1"]) | JSON},
    optional={"instance_type": JSON},
)
RESOURCE = st.fixed_dictionaries(
    {
        "current_host": st.just("algo-1") | JSON,
        "hosts": st.just(["algo-1"]) | st.just(["algo-1", "algo-2"]) | st.just(["algo-2", "algo-1"]) | JSON,
    },
    optional={
        "current_instance_type": st.just("ml.p4d.24xlarge") | JSON,
        "current_group_name": st.just("g") | JSON,
        "network_interface_name": st.just("eth0") | JSON,
        "instance_groups": st.lists(GROUP, max_size=2) | JSON,
        "topology": JSON,
    },
)
INPUTS = st.dictionaries(WORDS | st.text(max_size=8), JSON, max_size=2)


def file_of(content: st.SearchStrategy[object]) -> st.SearchStrategy[bytes | None]:
    """A file's bytes: JSON that is or is not what it should be, cut or binary; None for no file."""
    text = content.map(lambda value: json.dumps(value).encode())
    return st.one_of(
        text,
        text,
        text,
        JSON.map(lambda value: json.dumps(value).encode()),
        st.tuples(text, st.integers(0, 60)).map(lambda pair: pair[0][: pair[1]]),
        st.binary(max_size=30),
        st.none(),
    )


VARIABLES = (
    *("SHOAL_HOSTS", "SHOAL_HOST_INDEX", "SHOAL_HOST_COUNT", "SHOAL_HPS", "SHOAL_STOP_GRACE", "SHOAL_CONTROL_PORT"),
    *("SHOAL_SSH_PORT", "SHOAL_EFA", "SLURM_JOB_NODELIST", "SLURM_NODEID", "JOB_COMPLETION_INDEX", "PET_NNODES"),
    *("PET_NODE_RANK", "PET_MASTER_ADDR", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NODE_INDEX"),
    *("SAGEMAKER_PROGRAM", "SAGEMAKER_SUBMIT_DIRECTORY", "SAGEMAKER_CONTAINER_LOG_LEVEL", "OMP_NUM_THREADS"),
    "SHOAL_COMMAND",
)
# What an environment can hold.
ENVIRON = st.dictionaries(
    st.sampled_from(VARIABLES), WORDS.filter(lambda word: "\0" not in word and "\ud800" not in word), max_size=2
)


def run(
    folder: Path, files: Mapping[str, bytes | None], environ: Mapping[str, str], arguments: tuple[str, ...] = ()
) -> tuple[int, str]:
    """`train` in a fork of this process, without a network: its exit code and what it wrote to stdout and stderr."""
    shutil.rmtree(folder, ignore_errors=True)
    config = folder / "ml" / "input" / "config"
    config.mkdir(parents=True)
    (folder / "ml" / "code").mkdir()
    (folder / "ml" / "code" / "train.py").touch()
    for name, content in files.items():
        if content is not None:
            (config / f"{name}.json").write_bytes(content)
    log = folder / "stderr"
    child = os.fork()
    if child == 0:
        try:
            _in_child(folder, log, environ, arguments)
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status), f"killed by signal {status}"
    return os.WEXITSTATUS(status), log.read_text(errors="replace")


def _in_child(folder: Path, log: Path, environ: Mapping[str, str], arguments: tuple[str, ...]) -> None:
    os.setsid()
    ctypes.CDLL(None).unshare(_CLONE_NEWNET)
    output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - pytest's is in this fork, too
    os.environ.clear()
    os.environ.update(environ)
    os.environ.update(
        SAGEMAKER_BASE_DIR=str(folder / "ml"),
        SHOAL_RUN_DIR=str(folder / "run"),
        SHOAL_JOIN_TIMEOUT="0.2",
        PATH=str(folder / "no-tools"),
    )
    leader._FAREWELL_SECONDS = 0.1  # for hosts that will never come
    os._exit(main(arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.getuid() != 0:
        pytest.skip("a network namespace needs root's rights")
    return tmp_path_factory.mktemp("hostile") / "host"


GOOD = b'{"current_host": "algo-1", "hosts": ["algo-1"]}'


@given(
    hyperparameters=file_of(HYPERPARAMETERS),
    resource=file_of(RESOURCE),
    inputs=file_of(INPUTS),
    environ=ENVIRON,
)
@example(hyperparameters=b"[" * 100_000, resource=GOOD, inputs=None, environ={})
@example(hyperparameters=b'{"sagemaker_program": "train.py"}', resource=GOOD, inputs=b"{", environ={})
@example(hyperparameters=b'{"sagemaker_program": "train.py", "k": "\\u0000"}', resource=GOOD, inputs=None, environ={})
@settings(
    max_examples=1000,
    derandomize="EXPLORE" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_no_content_breaks_train(
    folder: Path,
    hyperparameters: bytes | None,
    resource: bytes | None,
    inputs: bytes | None,
    environ: dict[str, str],
) -> None:
    files = {"hyperparameters": hyperparameters, "resourceconfig": resource, "inputdataconfig": inputs}
    code, said = run(folder, files, environ)
    output = folder / "ml" / "output"
    if code == 0:
        assert (output / "success").exists()
        assert not (output / "failure").exists()
        return
    failure = (output / "failure").read_text(encoding="utf-8")
    assert failure.strip(), said
    assert "Traceback" not in failure, failure
    assert "Traceback" not in said, said
    assert "Framework Error" not in failure, failure


@given(
    hyperparameters=file_of(HYPERPARAMETERS),
    resource=file_of(RESOURCE),
    inputs=file_of(INPUTS),
    environ=ENVIRON,
)
@example(hyperparameters=b"[" * 100_000, resource=GOOD, inputs=None, environ={})
@settings(
    max_examples=200,
    derandomize="EXPLORE" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_no_content_breaks_the_check(
    folder: Path,
    hyperparameters: bytes | None,
    resource: bytes | None,
    inputs: bytes | None,
    environ: dict[str, str],
) -> None:
    files = {"hyperparameters": hyperparameters, "resourceconfig": resource, "inputdataconfig": inputs}
    code, said = run(folder, files, environ, ("--check", "--json"))
    report = json.loads(said.splitlines()[-1])
    assert code == (report["problems"] > 0), said
    assert "check" not in [row["name"] for row in report["rows"]], said  # what only a fault of ours leaves
    assert "Traceback" not in said, said
    assert not (folder / "ml" / "output").exists()
