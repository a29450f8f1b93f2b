"""The cases of `cases/entrypoint.json` that are no single run of one host: what happens over a job's life, and known
faults of the existing toolkit. What each expects is read from its case; where `train` does better, the test says why.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Host, MakeCluster, until

CASES = Path(__file__).parents[3] / "shared" / "cases" / "entrypoint.json"
MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
RUNNERS = {"MPI runner": {}, "smdataparallel runner": {"sagemaker_distributed_dataparallel_enabled": "true"}}
NOTE_HOST = """\
import os
with open(f"{os.environ['SM_MODEL_DIR']}/{os.environ['RANK']}", "w") as file:
    file.write(os.environ["SM_CURRENT_HOST"])
"""


def changed(path: Path) -> int | None:
    """When a file was last written, if it is there."""
    return path.stat().st_mtime_ns if path.exists() else None


def case(name: str) -> dict[str, Any]:
    """One case; skips where the file is not."""
    if not CASES.exists():
        pytest.skip(f"{CASES} is not on this machine")
    found: dict[str, Any] = next(one for one in json.loads(CASES.read_text())["cases"] if one["id"] == name)
    return found


@pytest.mark.parametrize("runner", RUNNERS)
def test_mpi_worker_lifecycle(cluster: MakeCluster, runner: str) -> None:
    given, expect = case("mpi_worker_lifecycle")["inputs"], case("mpi_worker_lifecycle")["expect"]
    hosts = cluster(names=given["hosts"])
    parameters = dict(given["hyperparameters.json"])
    if RUNNERS[runner]:
        parameters.pop("sagemaker_mpi_enabled")
    hosts.job({**parameters, **RUNNERS[runner]}, NOTE_HOST)
    # No status file and no environment for everyone to read: the hosts tell each other.
    traces = [Path("/etc/environment"), Path(expect["status_file_on_worker"].partition(" ")[0])]
    before = [changed(path) for path in traces]
    hosts.start({"MY_TOKEN": "not for /etc/environment"})
    assert hosts.wait() == [expect["both_exit_code"]] * 2, [host.stderr for host in hosts.hosts]
    assert [host.succeeded for host in hosts.hosts] == [True, True]
    worker = hosts.hosts[1]
    seen = {(worker.ml / "model" / rank).read_text() for rank in ("2", "3")}
    # The case: under the MPI runner they see the first host's name, which it calls a bug.
    assert seen == {expect["ranks_on_algo-2_see"]["smdataparallel runner"]["SM_CURRENT_HOST"]}
    assert [changed(path) for path in traces] == before


def test_mpi_user_failure_two_hosts(cluster: MakeCluster) -> None:
    expect = case("mpi_user_failure_two_hosts")["expect"]
    hosts = cluster()
    hosts.job(
        MPI,
        "import os\nif os.environ['RANK'] == '3':\n    raise ValueError('on the worker')\nimport time; time.sleep(60)",
    )
    hosts.start()
    # The case: the worker reports success, 150 s later. Here both fail, with the first host's code and text.
    assert hosts.wait() == [expect["algo-1"]["exit_code"]] * 2
    until_message = expect["algo-1"]["failure_starts_with"].rpartition('"')[0]
    for host in hosts.hosts:
        assert host.failure.startswith(until_message + '"ValueError: on the worker\nrank 3 on algo-2')
        assert not host.succeeded


SAVING = """\
import os, signal, sys, time
def save(*_):
    open(os.environ["SM_MODEL_DIR"] + "/saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(os.environ["SM_MODEL_DIR"] + "/running", "w").close()
time.sleep(60)
"""


def test_sigterm_semantics_as_pid_1(cluster: MakeCluster) -> None:
    expect = case("sigterm_semantics")["expect"]["train or bash wrapper as PID 1"]
    host = running(cluster(1), {})
    host.signal(signal.SIGTERM)
    assert host.wait() == 0  # as the script's handler ends; the toolkit would be alive 10 s later
    assert (host.ml / "model" / "saved").exists() is not expect["user_handler_called"]


def test_sigterm_semantics_not_pid_1(cluster: MakeCluster) -> None:
    expect = case("sigterm_semantics")["expect"]["train not PID 1"]
    assert "its SIGTERM handler is never called" in expect["user_process"]
    hosts = cluster(1)
    train = hosts.folder / "bin" / "train"
    (train.parent / "real-train").write_text(train.read_text())
    (train.parent / "real-train").chmod(0o755)
    # Some image's own wrapper: it starts `train` as a child, and ends as that ends.
    train.write_text("#!/bin/sh\nreal-train &\nwait $!\n")
    host = running(hosts, {})
    child = int(Path(f"/proc/{host.train}/task/{host.train}/children").read_text().split()[0])
    os.kill(child, signal.SIGTERM)
    assert host.wait() == 0
    assert (host.ml / "model" / "saved").exists()
    assert host.processes() == []


def running(hosts: Cluster, env: dict[str, str]) -> Host:
    hosts.job({}, SAVING)
    hosts.start(env)
    (host,) = hosts.hosts
    until((host.ml / "model" / "running").exists)
    return host


def test_framework_oserror_without_errno_must_fail(cluster: MakeCluster) -> None:
    expect = case("framework_oserror_without_errno_must_fail")["expect"]
    hosts = cluster(1)
    hosts.job({}, "pass")
    # There is no framework module here: the same exception, out of `train` itself.
    train = hosts.folder / "bin" / "train"
    fault = "import shoal_entrypoint.host as host\ndef run(*_): raise OSError('no errno here')\nhost.run = run\n"
    train.write_text(train.read_text().replace("sys.exit(main())", f"{fault}sys.exit(main())"))
    hosts.start({"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"})
    (host,) = hosts.hosts
    assert host.wait() == 1 != expect["real_toolkit_exit_code"]
    assert host.failure.startswith(expect["real_toolkit_failure_file"].split("'")[1])
    assert host.failure.endswith("no errno here")


def test_gloo_enforce_swallowed(cluster: MakeCluster) -> None:
    expect = case("gloo_enforce_swallowed")["expect"]
    hosts = cluster(1)
    line = "terminate called after throwing an instance of 'gloo::EnforceNotMet'"
    hosts.job({}, f"import sys\nprint({line!r}, file=sys.stderr)\nsys.exit(1)\n")
    hosts.start()
    (host,) = hosts.hosts
    assert host.wait() == 1 != expect["real_toolkit_exit_code"]
    assert line in host.failure
    assert not host.succeeded


def test_env_submit_dir_and_log_level_ignored(cluster: MakeCluster) -> None:
    assert (
        "honouring them is a compatible improvement" in case("env_submit_dir_and_log_level_ignored")["expect"]["note"]
    )
    hosts = cluster(1)
    hosts.job({}, None)
    (host,) = hosts.hosts
    mine = host.ml / "mine"
    mine.mkdir()
    (mine / "train.py").write_text(
        "import os; open(os.environ['SM_MODEL_DIR'] + '/level', 'w').write(os.environ['SM_LOG_LEVEL'])"
    )
    hosts.start({"SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/mine", "SAGEMAKER_CONTAINER_LOG_LEVEL": "10"})
    assert host.wait() == 0, host.stderr
    assert (host.ml / "model" / "level").read_text() == "10"


def test_every_case_is_run_by_one_of_the_two_files() -> None:
    if not CASES.exists():
        pytest.skip(f"{CASES} is not on this machine")
    from test_cases import NOT_RUNS

    here = {name for name in vars(sys.modules[__name__]) if name.startswith("test_")}
    for name in NOT_RUNS:
        assert any(test.startswith(f"test_{name}") for test in here), name
