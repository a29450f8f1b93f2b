"""Whole runs of small jobs on the real engine: what hosts see, how jobs end, what is left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import docker
import pytest
from job_folder import LOOP, JobFolder, content, script, socket_group, things_of, until

pytestmark = pytest.mark.engine

# Interpreter and packages may lie where only root can read: load everything, then become the other user.
AS_ANOTHER_USER = """
import contextlib, importlib, os, pkgutil, sys
import encodings.idna, shoal.job.docker_hosts, shoal.job.run
for package in ("docker", "requests", "rich", "shoal", "typer", "urllib3"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError, AssertionError):  # those for other systems
                importlib.import_module(module.name)
from shoal.cli import main
from shoal.job.spec import operation_shape
operation_shape("CreateTrainingJob", "input")
user, group, *sys.argv[1:] = sys.argv[1:]
os.setgroups([]); os.setgid(int(group)); os.setuid(int(user))
main()
"""


def test_hosts_have_names_files_and_channels(job: JobFolder, engine: docker.DockerClient) -> None:
    (job.path / "src" / "__pycache__").mkdir(parents=True)
    (job.path / "src" / "train.py").write_text("print('code')\n")
    job.request["HyperParameters"] = {"sagemaker_submit_directory": "file://src", "epochs": "3"}
    ping = "for h in algo-1 algo-2; do until ping -c1 -W1 $h >/dev/null 2>&1; do sleep 0.1; done; echo sees $h; done"
    script(
        job,
        f"{ping}; hostname; cat /opt/ml/input/data/train/x /opt/ml/code/*; ls /opt/ml/code; echo $TRAINING_JOB_NAME;"
        "touch /opt/ml/input/data/train/y 2>/dev/null || echo read-only; cp /opt/ml/input/config/* /opt/ml/model;"
        "df -k /dev/shm | tail -1; sleep 1.5",  # the other host must still be there to be found
    )
    done = job.shoal("run")
    assert done.returncode == 0, done.stderr
    name = job.request["TrainingJobName"]
    for host in ("algo-1", "algo-2"):
        lines = job.log(host).splitlines()
        assert lines[:-1] == [
            *("sees algo-1", "sees algo-2", host, "hello", "print('code')", "train.py", name, "read-only"),
        ]
        assert int(lines[-1].split()[1]) * 1024 == pytest.approx(engine.info()["MemTotal"] / 2, rel=0.01)
        assert [f"{host} | {line}" for line in lines] == [x for x in done.stdout.splitlines() if x.startswith(host)]
    config = content(job.run_folder / "output" / "model.tar.gz")
    assert json.loads(config["hyperparameters.json"])["epochs"] == "3"
    assert json.loads(config["resourceconfig.json"])["hosts"] == ["algo-1", "algo-2"]
    described = job.described
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Completed", "Completed")
    assert [host["ExitCode"] for host in described["Shoal"]["Hosts"]] == [0, 0]
    assert sorted(path.name for path in (job.path / "data").iterdir()) == ["x"]


def test_stages_go_to_stderr_with_seconds(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, "echo '[bold]data[/]'", hosts=1)
    done = job.shoal("run")
    stages = [line.split()[2] for line in done.stderr.splitlines()]
    assert stages == ["Starting", "Training", "Uploading", "Completed"]
    assert done.stdout == "algo-1 | [bold]data[/]\n"


def test_json_is_alone_on_stdout(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, "echo line", hosts=1)
    done = job.shoal("run", "--json")
    assert json.loads(done.stdout) == job.described
    assert "algo-1 | line" in done.stderr


def test_a_log_is_kept_byte_for_byte(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, r"printf '\377\000tab\there\r\nerr\n' >&2; head -c 300000 /dev/zero | tr '\000' x; printf end", hosts=1)
    assert job.shoal("run").returncode == 0
    raw = (job.run_folder / "logs" / "algo-1.log").read_bytes()
    error = b"\xff\x00tab\there\r\nerr\n"
    assert raw.count(error) == 1
    assert raw.replace(error, b"") == b"x" * 300000 + b"end"  # which of two pipes comes first is the engine's to say


def test_a_host_that_fails_fails_the_job_and_ends_the_others(job: JobFolder, engine: docker.DockerClient) -> None:
    # The other host notices by itself, as `train` does: nobody has to stop it.
    # By its address: a name that is gone can cost as many seconds as the engine's own name servers take to say so.
    other = "until said=$(ping -c1 -W1 algo-2 2>&1); do sleep 0.1; done; "
    other += "address=${said#*\\(}; address=${address%%\\)*}; "
    other += "while ping -c1 -W1 $address >/dev/null 2>&1; do sleep 0.1; done; echo noticed; exit 1"
    met = "until ping -c1 -W1 algo-1 >/dev/null 2>&1; do sleep 0.1; done; sleep 2; "
    fail = f"{met}printf 'ValueError: boom' > /opt/ml/output/failure; echo 1 > /opt/ml/model/part; exit 3"
    script(job, f"if [ $(hostname) = algo-2 ]; then {fail}; else {other}; fi")
    done = job.shoal("run")
    assert done.returncode == 1
    described = job.described
    assert described["TrainingJobStatus"] == "Failed"
    assert described["FailureReason"] == "ValueError: boom"
    assert [host["ExitCode"] for host in described["Shoal"]["Hosts"]] == [1, 3]
    assert "noticed" in job.log("algo-1")
    assert "SIGTERM" not in done.stderr
    assert (job.run_folder / "logs" / "algo-2.failure").read_text() == "ValueError: boom"
    assert content(job.run_folder / "output" / "model.tar.gz") == {"part": "1\n"}


@pytest.mark.slow
def test_a_host_that_does_not_notice_a_failure_is_stopped(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, f"trap 'echo got TERM; exit 0' TERM; if [ $(hostname) = algo-2 ]; then exit 3; fi; {LOOP}")
    done = job.shoal("run")
    assert done.returncode == 1
    assert "got TERM" in job.log("algo-1")
    assert "SIGTERM to algo-1: the job has failed" in done.stderr
    assert job.described["FailureReason"] == "AlgorithmError: algo-2 ended with exit code 3"


def test_a_command_that_cannot_be_executed_is_a_failed_job(job: JobFolder, engine: docker.DockerClient) -> None:
    job.request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["/no/such/program"]
    done = job.shoal("run")
    assert done.returncode == 1
    assert "exit code 127 (its command, or a command in it, was not found)" in job.described["FailureReason"]
    assert "/no/such/program" in done.stdout  # in the host's log: its init says so


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_once_hosts_have_time_to_save(
    job: JobFolder, engine: docker.DockerClient, number: signal.Signals, code: int
) -> None:
    script(job, f"trap 'echo got TERM; hostname > /opt/ml/model/$(hostname); exit 0' TERM; {LOOP}")
    process = job.start()
    job.until_logged("ready")
    process.send_signal(number)
    assert process.wait(60) == code
    assert "got TERM" in job.log("algo-1")
    assert "got TERM" in job.log("algo-2")
    assert content(job.run_folder / "output" / "model.tar.gz") == {"algo-1": "algo-1\n", "algo-2": "algo-2\n"}
    assert (job.described["TrainingJobStatus"], job.described["SecondaryStatus"]) == ("Stopped", "Stopped")


def test_stopped_before_all_hosts_are_up_nothing_is_left(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, f"trap 'exit 0' TERM; {LOOP}", hosts=4)
    process = job.start()
    assert process.stderr is not None
    until_line(process.stderr, "Starting")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert job.described["SecondaryStatus"] == "Stopped"


def test_stopped_twice_hosts_are_killed_at_once(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, f"trap 'echo ignored' TERM; {LOOP}")
    process = job.start()
    job.until_logged("ready")
    process.send_signal(signal.SIGINT)
    job.until_logged("ignored")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130  # not the 120 s of grace
    assert process.stderr is not None
    assert "SIGKILL to algo-1, algo-2: Ctrl-C again\n" in process.stderr.read()
    assert [host["ExitCode"] for host in job.described["Shoal"]["Hosts"]] == [137, 137]


def test_a_host_removed_by_somebody_else_is_a_failed_job(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, LOOP, hosts=1)
    process = job.start()
    job.until_logged("ready", hosts=("algo-1",))
    engine.containers.get(f"{job.request['TrainingJobName']}-algo-1").remove(force=True)
    # Killed first, gone a moment later: whether the run still reads it decides between "failed" and "engine failed".
    assert process.wait(60) in (1, 3)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    assert job.described["TrainingJobStatus"] == "Failed"


MEASURE = """cd /opt/ml/output; mkdir -p profiler/system/incremental/1 profiler/steps
echo {} > profiler/system/incremental/1/1.$(hostname).json"""


@pytest.mark.parametrize(
    ("command", "config", "files"),
    [
        (MEASURE, {}, ["system/incremental/1/1.algo-1.json", "system/incremental/1/1.algo-2.json"]),
        ("mkdir -p /opt/ml/output/profiler/steps", {}, None),  # too short for a sample
        ("true", {}, None),  # an image with another `train`
        (MEASURE, {"DisableProfiler": True}, None),
    ],
)
def test_measurements_lie_in_the_run_folder_if_there_are_any(
    job: JobFolder, engine: docker.DockerClient, command: str, config: dict[str, Any], files: list[str] | None
) -> None:
    job.request["ProfilerConfig"] = config
    script(job, command)
    done = job.shoal("run")
    assert done.returncode == 0, done.stderr
    assert "profiler" not in done.stderr
    folder = job.run_folder / "profiler-output"
    assert folder.exists() == bool(files)
    assert [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.json"))] == (files or [])
    assert not (folder / "steps").exists()


def test_results_can_be_given_up(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, "head -c 200000000 /dev/urandom > /opt/ml/model/m", hosts=1)
    process = job.start()
    assert process.stderr is not None
    until_line(process.stderr, "Uploading")
    process.send_signal(signal.SIGINT)
    until_line(process.stderr, "Ctrl-C once more")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert list((job.run_folder / "output").iterdir()) == []
    assert (job.described["TrainingJobStatus"], job.described["SecondaryStatus"]) == ("Stopped", "Stopped")


def until_line(stream: IO[str], text: str) -> None:
    assert any(text in line for line in iter(stream.readline, "")), f"{text!r} was never said"


def test_a_reader_that_goes_away_does_not_stop_the_job(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, "for i in $(seq 20000); do echo line $i of many; done; echo 1 > /opt/ml/model/m", hosts=1)
    process = job.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "algo-1 | line 1 of many\n"
    process.stdout.close()
    assert process.wait(60) == 0
    assert len(job.log("algo-1").splitlines()) == 20000
    assert process.stderr is not None
    assert "Error" not in process.stderr.read()


def test_max_runtime_stops_the_job(job: JobFolder, engine: docker.DockerClient) -> None:
    job.request["StoppingCondition"]["MaxRuntimeInSeconds"] = 2
    script(job, f"trap 'echo got TERM; exit 0' TERM; {LOOP}")
    done = job.shoal("run")
    assert done.returncode == 124
    assert (job.described["TrainingJobStatus"], job.described["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert "got TERM" in job.log("algo-1")


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(
    job: JobFolder, engine: docker.DockerClient
) -> None:
    script(job, f"trap 'exit 0' TERM; {LOOP}")
    living = job.start()
    job.until_logged("ready")
    name = job.request["TrainingJobName"]
    killed = f"{name}-killed"
    dying = job.start("--job-name", killed)
    until(lambda: len(things_of(engine, killed)) == 3, "hosts and network of the second job")
    dying.kill()
    dying.wait()
    assert len(things_of(engine, killed)) == 3

    script(job, "true", hosts=1)
    done = job.shoal("run", "--job-name", f"{name}-next")
    assert done.returncode == 0
    assert f"removed what a killed run of {killed} had left" in done.stderr
    assert things_of(engine, killed) == []
    told = json.loads((job.path / "runs" / killed / "job.json").read_text())
    assert (told["TrainingJobStatus"], told["FailureReason"][:30]) == ("Failed", "InternalServerError: shoal run")
    assert len(things_of(engine, name)) == 3

    again = job.shoal("run", "--output", str(job.path / "elsewhere"))
    assert again.returncode == 2
    assert f"a job called {name!r} is running" in again.stderr
    living.send_signal(signal.SIGINT)
    assert living.wait(60) == 130


@pytest.mark.parametrize("isolated", [True, False])
def test_an_isolated_job_has_an_internal_network(job: JobFolder, engine: docker.DockerClient, isolated: bool) -> None:
    # What "internal" means is the engine's business; that a way out exists cannot be shown on a machine without one.
    job.request["EnableNetworkIsolation"] = isolated
    script(job, f"trap 'exit 0' TERM; {LOOP}", hosts=1)
    process = job.start()
    job.until_logged("ready", hosts=("algo-1",))
    [network] = engine.networks.list(filters={"label": f"shoal.job={job.request['TrainingJobName']}"})
    assert network.attrs["Internal"] is isolated
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run shoal as somebody else")
def test_every_result_belongs_to_the_user(job: JobFolder, engine: docker.DockerClient) -> None:
    group = socket_group()
    assert group is not None
    script(
        job, "umask 077; echo 1 > /opt/ml/model/m; echo 2 > /opt/ml/output/data/o; chmod 4777 /opt/ml/model/m", hosts=1
    )
    (job.path / "job.json").write_text(json.dumps(job.request))
    nobody = 65534
    for path in (job.path, *job.path.parents):
        if path == Path(path.anchor) or path.name == "tmp":
            break
        path.chmod(0o755)
    os.chown(job.path, nobody, group)
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, str(nobody), str(group), "run", str(job.path / "job.json")],
        cwd=job.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    owners = {path: path.stat().st_uid for path in (job.run_folder, *job.run_folder.rglob("*"))}
    assert len(owners) == 7
    assert set(owners.values()) == {nobody}
    assert content(job.run_folder / "output" / "model.tar.gz") == {"m": "1\n"}
    assert content(job.run_folder / "output" / "output.tar.gz") == {"o": "2\n"}
