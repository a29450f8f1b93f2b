"""Real runs on one host: `train` as PID 1 in a PID namespace, as `docker run IMAGE train` makes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypedDict

import pytest
from cluster import SOURCE, Host, MakeCluster, until

MARK = (
    "import os, signal, sys, time\ndef mark(name, text=''):\n    open('/opt/ml/output/data/' + name, 'w').write(text)\n"
)


def data(host: Host, name: str) -> Path:
    return host.ml / "output" / "data" / name


class RunJob(Protocol):
    """The `host` fixture."""

    def __call__(
        self,
        script: str | None = None,
        hyperparameters: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        mounts: str = "",
        files: Mapping[str, str] | None = None,
    ) -> Host: ...


class Described(TypedDict, total=False):
    """A job that RunJob can run."""

    script: str
    hyperparameters: dict[str, str]
    files: dict[str, str]


@pytest.fixture
def host(cluster: MakeCluster) -> RunJob:
    one = cluster(1)

    def run(
        script: str | None = None,
        hyperparameters: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        mounts: str = "",
        files: Mapping[str, str] | None = None,
    ) -> Host:
        one.job(hyperparameters or {}, script, files)
        one.hosts[0].start(env or {}, mounts)
        return one.hosts[0]

    return run


def test_output_passes_unchanged(host: RunJob) -> None:
    """Bytes that are no text, carriage returns, an unfinished line, leading blanks, and more than a pipe holds."""
    script = """import os, sys
os.write(1, b"  abc"); os.write(1, b"def\\r10%\\r20%\\n\\xff\\xfe\\n")
os.write(2, b"to stderr\\n")
for i in range(300): os.write(1, b"%06d " % i * 1000)
os.write(1, b"no end")
"""
    ran = host(script)
    assert ran.wait() == 0
    body = b"".join(b"%06d " % number * 1000 for number in range(300))
    assert (ran.folder / "stdout").read_bytes() == b"  abcdef\r10%\r20%\n\xff\xfe\n" + body + b"no end"
    assert "to stderr\n" in ran.stderr


def test_the_exit_code_and_the_traceback_are_the_script_s(host: RunJob) -> None:
    ran = host("def f():\n    raise KeyError('weights')\nf()\n")
    assert ran.wait() == 1
    assert ran.failure.startswith("ExecuteUserScriptError:\nExitCode 1\nErrorMessage \"KeyError: 'weights'\nTraceback")


def test_a_script_that_complains_on_stdout_alone_is_heard(host: RunJob) -> None:
    ran = host("print('loading')\nprint('no such data set: digits')\nraise SystemExit(4)\n")
    assert ran.wait() == 4
    assert 'ErrorMessage "loading\nno such data set: digits"' in ran.failure


def test_a_killed_script_says_out_of_memory(host: RunJob) -> None:
    ran = host("import os\nos.kill(os.getpid(), 9)\n")
    assert ran.wait() == 137
    assert 'ExtraInfo "OutOfMemory: Process killed by SIGKILL (signal 9)"' in ran.failure


def test_the_script_s_own_failure_file_is_kept(host: RunJob) -> None:
    ran = host("open('/opt/ml/output/failure', 'w').write('my own reason')\nraise SystemExit(5)\n")
    assert ran.wait() == 5
    assert ran.failure == "my own reason"


def test_a_failure_that_cannot_be_written_still_fails(host: RunJob) -> None:
    """A full disk must not make a failed job look completed."""
    mounts = "mkdir -p /opt/ml/output/data; mount -t tmpfs -o size=4k tmpfs /opt/ml/output; mkdir /opt/ml/output/data"
    ran = host(
        "f = open('/opt/ml/output/data/x', 'wb', 0)\ntry:\n    while f.write(b'x' * 512): pass\nfinally: f = 0\n",
        mounts=mounts,
    )
    assert ran.wait() == 1
    assert "cannot be written" in ran.stderr
    assert "No space left on device" in ran.stderr
    assert not ran.succeeded


HANDLED = (
    MARK + "def stop(signum, frame):\n    mark('stopped')\n    sys.exit({code})\nsignal.signal(signal.SIGTERM, stop)\n"
    "mark('running')\ntime.sleep(60)\n"
)


@pytest.mark.parametrize("code", [0, 7])
def test_sigterm_reaches_the_handler_and_its_exit_code_counts(host: RunJob, code: int) -> None:
    ran = host(HANDLED.replace("{code}", str(code)))
    until(data(ran, "running").exists)
    ran.signal(signal.SIGTERM)
    assert ran.wait() == code
    assert data(ran, "stopped").exists()
    assert ran.succeeded is (code == 0)
    if code:
        assert "Stopped by SIGTERM" in ran.failure
        assert "ExitCode 7" in ran.failure


def test_sigterm_does_not_reach_the_helpers_of_a_script_that_handles_it(host: RunJob) -> None:
    """Data loader workers must not die while the script saves its checkpoint."""
    script = (
        MARK + "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
        "def stop(signum, frame):\n    time.sleep(0.3)\n    mark('stopped', str(child.poll()))\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\nmark('running')\ntime.sleep(60)\n"
    )
    ran = host(script)
    until(data(ran, "running").exists)
    ran.signal(signal.SIGTERM)
    assert ran.wait() == 0
    assert data(ran, "stopped").read_text() == "None"
    assert ran.processes() == []


def test_a_shell_script_s_python_gets_sigterm_too(host: RunJob) -> None:
    inner = HANDLED.replace("{code}", "0")
    ran = host(
        files={"run.sh": f"#!/bin/sh\n{sys.executable} inner.py\necho after\n", "inner.py": inner},
        hyperparameters={"sagemaker_program": "run.sh"},
    )
    until(data(ran, "running").exists)
    ran.signal(signal.SIGTERM)
    assert ran.wait() == 143
    assert data(ran, "stopped").exists()


def test_nothing_is_left_running_and_a_background_child_does_not_hold_the_job(host: RunJob) -> None:
    ran = host(
        "import subprocess\nsubprocess.Popen(['sleep', '300'])\nsubprocess.Popen(['sh', '-c', 'setsid sleep 300 &'])\n"
    )
    started = time.monotonic()
    assert ran.wait() == 0
    assert time.monotonic() - started < 5
    assert ran.processes() == []


def test_orphans_are_reaped_during_the_job(host: RunJob) -> None:
    """A double fork leaves a zombie to PID 1; the script looks whether it is gone."""
    script = """import os, subprocess, time
pid = int(subprocess.check_output(["sh", "-c", "sleep 0.1 >&2 & echo $!"]))
end = time.monotonic() + 10
while os.path.exists(f"/proc/{pid}"):
    assert time.monotonic() < end, "still a zombie"
    time.sleep(0.02)
"""
    ran = host(script)
    assert ran.wait() == 0, ran.failure


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (
            {"files": {"main.py": "", "lib/util.py": ""}},
            "train.py: no such file in /opt/ml/code; .py files there: lib/util.py, main.py."
            " Set sagemaker_program to one of them.",
        ),
        (
            {"hyperparameters": {"sagemaker_program": "../x.py"}},
            "sagemaker_program: '../x.py' is not a file name below /opt/ml/code",
        ),
        (
            {"hyperparameters": {"sagemaker_submit_directory": "/nowhere"}},
            "sagemaker_submit_directory: /nowhere: no such file or directory",
        ),
        (
            {
                "hyperparameters": {"sagemaker_mpi_num_of_processes_per_host": "-1", "sagemaker_mpi_enabled": "true"},
                "script": "1",
            },
            "hyperparameters.json: sagemaker_mpi_num_of_processes_per_host: a whole number of at least 1 was expected",
        ),
        (
            {"files": {"train.py": "", "requirements.txt": "./nothing-here\n"}},
            'InstallRequirementsError:\nExitCode 1\nErrorMessage "',
        ),
    ],
    ids=["entry point", "entry point outside", "source", "processes", "requirements"],
)
def test_a_job_that_cannot_start_says_why_in_a_line(host: RunJob, job: Described, text: str) -> None:
    ran = host(**job)
    assert ran.wait() == 1
    assert ran.failure.startswith(text)


def test_hyperparameters_that_are_no_json_are_located(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({}, "")
    (one.hosts[0].ml / "input" / "config" / "hyperparameters.json").write_text('{"lr": 1,}')
    one.start()
    assert one.wait() == [1]
    assert one.hosts[0].failure.startswith("/opt/ml/input/config/hyperparameters.json: line 1, column ")


def test_mpirun_missing_is_said(host: RunJob) -> None:
    ran = host(
        "1", {"sagemaker_distributed_dataparallel_enabled": "true"}, mounts="mount --bind /dev/null /usr/bin/mpirun"
    )
    assert ran.wait() == 1
    assert ran.failure == "mpirun: not found on PATH. A job with MPI needs it: install openmpi-bin."


def test_a_smddp_job_on_one_host_needs_no_ssh(host: RunJob) -> None:
    script = MARK + "mark('rank-' + os.environ['RANK'], os.environ['WORLD_SIZE'])\n"
    flags = {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
    ran = host(
        script, flags, mounts="mount --bind /dev/null /usr/sbin/sshd; mount --bind /dev/null /usr/bin/ssh-keygen"
    )
    assert ran.wait() == 0, ran.stderr
    assert [data(ran, f"rank-{rank}").read_text() for rank in (0, 1)] == ["2", "2"]


@pytest.mark.parametrize(("options", "cores"), [("", len(os.sched_getaffinity(0))), ("--bind-to core", 1)])
def test_a_rank_is_bound_to_a_core_only_where_the_job_says_so(host: RunJob, options: str, cores: int) -> None:
    """Open MPI binds each of one or two ranks: with its threads, and with every host of a job on the same machine."""
    script = MARK + "mark('cores', str(len(os.sched_getaffinity(0))))\n"
    flags = {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "1"}
    ran = host(script, {**flags, "sagemaker_distributed_dataparallel_custom_mpi_options": json.dumps(options)})
    assert ran.wait() == 0, ran.stderr
    assert data(ran, "cores").read_text() == str(cores)


def test_user_settings_win(host: RunJob) -> None:
    env = {"NCCL_DEBUG": "TRACE", "OMP_NUM_THREADS": "7", "GLOO_SOCKET_IFNAME": "ens9", "NCCL_IB_DISABLE": "0"}
    ran = host("import json, os\njson.dump(dict(os.environ), open('/opt/ml/output/data/env', 'w'))\n", env=env)
    assert ran.wait() == 0
    seen = json.loads(data(ran, "env").read_text())
    assert {name: seen[name] for name in env} == env
    assert seen["NCCL_SOCKET_IFNAME"] == "eth0"


def test_without_being_pid_1_nothing_is_orphaned_either(tmp_path: Path) -> None:
    """As a child of a shell wrapper, `train` adopts what its script leaves behind."""
    config, code = tmp_path / "input" / "config", tmp_path / "code"
    config.mkdir(parents=True)
    code.mkdir()
    (config / "hyperparameters.json").write_text('{"sagemaker_program": "train.py"}')
    (config / "resourceconfig.json").write_text('{"current_host": "localhost", "hosts": ["localhost"]}')
    (code / "train.py").write_text(
        "import subprocess\n"
        "print(subprocess.check_output(['sh', '-c', 'setsid sleep 300 >/dev/null & echo $!'], text=True).strip())\n"
    )
    env = {**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-m", "shoal_entrypoint"], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    left = int(done.stdout.split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(left, 0)


def test_a_script_that_ignores_sigterm_is_killed_after_the_grace(host: RunJob) -> None:
    script = MARK + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nmark('running')\ntime.sleep(60)\n"
    ran = host(script, env={"SHOAL_STOP_GRACE": "0.5"})
    until(data(ran, "running").exists)
    ran.signal(signal.SIGTERM)
    assert ran.wait(10) == 137
    assert "Stopped by SIGTERM" in ran.failure
    assert "OutOfMemory" not in ran.failure


@pytest.mark.parametrize("flag", ["sagemaker_distributed_dataparallel_enabled", "sagemaker_mpi_enabled", "none"])
def test_a_host_whose_name_nobody_knows_runs_alone(cluster: MakeCluster, flag: str) -> None:
    """`docker run` without a host name and without a network named eth0."""
    one = cluster(1)
    script = (
        MARK + "mark('rank-' + os.environ['RANK'], os.environ['MASTER_ADDR'] + ' ' + os.environ['SM_CURRENT_HOST'])\n"
    )
    one.job(
        {flag: "true", "sagemaker_mpi_num_of_processes_per_host": "1"},
        script,
        resource={"network_interface_name": "eth9"},
    )
    (one.folder / "hosts").write_text("127.0.0.1 localhost\n")
    one.hosts[0].hostname = "0123456789ab"
    one.start()
    assert one.wait() == [0], one.hosts[0].stderr
    assert data(one.hosts[0], "rank-0").read_text() == "localhost algo-1"


def test_output_that_cannot_be_uploaded_is_named_and_fails_nothing(host: RunJob) -> None:
    script = "import os\nopen(os.environ['SM_OUTPUT_INTERMEDIATE_DIR'] + '/a.txt', 'w').write('one')\n"
    nowhere = {"S3_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    one = host(script, {"sagemaker_s3_output": "s3://bucket/prefix"}, env={**nowhere, **keys})
    assert one.wait() == 0, one.stderr
    assert "/opt/ml/output/intermediate/a.txt: cannot be uploaded: " in one.stderr
    assert "Traceback" not in one.stderr


def test_an_upload_that_cannot_begin_is_named_and_fails_nothing(host: RunJob) -> None:
    one = host("pass", {"sagemaker_s3_output": "s3://bucket/prefix"}, env={"S3_ENDPOINT_URL": "not a URL"})
    assert one.wait() == 0, one.stderr
    assert "cannot be uploaded any more: " in one.stderr
    assert "Traceback" not in one.stderr


def test_an_unknown_kind_of_store_is_refused(host: RunJob) -> None:
    one = host("pass", {"sagemaker_s3_output": "ftp://bucket/prefix"})
    assert one.wait() == 1
    assert one.failure == "sagemaker_s3_output: ftp://bucket/prefix: s3://bucket/prefix or file:// was expected"
