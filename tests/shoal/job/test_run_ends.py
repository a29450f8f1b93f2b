"""Ends that are seldom: other forms of results, full disks, names in use, hosts with limits, a terminal."""

import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from job_folder import LOOP, SHOAL, JobFolder, content, script, until

from shoal.errors import ShoalError
from shoal.job import limits
from shoal.job.link_rate import qdisc

TC = shutil.which("tc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "tc"
pytestmark = pytest.mark.engine


def test_uncompressed_results_are_folders(job: JobFolder, engine: docker.DockerClient) -> None:
    job.request["OutputDataConfig"]["CompressionType"] = "NONE"
    script(
        job,
        "cd /opt/ml/model; hostname > same; mkdir -p sub; hostname > sub/$(hostname); ln -s same link;"
        "echo 1 > /opt/ml/output/data/$(hostname)",
    )
    done = job.shoal("run")
    assert done.returncode == 0, done.stderr
    output = job.run_folder / "output"
    files = {str(path.relative_to(output)): path.read_text() for path in output.rglob("*") if path.is_file()}
    assert files == {
        "model/same": "algo-1\n",
        "model/sub/algo-1": "algo-1\n",
        "model/sub/algo-2": "algo-2\n",
        "data/algo-1": "1\n",
        "data/algo-2": "1\n",
    }
    assert "model: algo-2: same left out: algo-1 has one of that name" in done.stderr
    assert "model: link left out: it is a link" in done.stderr
    assert job.described["ModelArtifacts"] == {"S3ModelArtifacts": (output / "model").as_uri()}


def test_a_model_folder_that_is_a_link_is_followed(job: JobFolder, engine: docker.DockerClient) -> None:
    script(
        job,
        "cd /opt/ml; rmdir model;"
        "if [ $(hostname) = algo-1 ]; then mkdir /tmp/m; echo 1 > /tmp/m/x; ln -s /tmp/m model;"
        "else echo 2 > model; rmdir output/data; ln -s /nowhere output/data; fi",
    )
    done = job.shoal("run")
    assert done.returncode == 0, done.stderr
    assert content(job.run_folder / "output" / "model.tar.gz") == {"x": "1\n"}
    for folder in ("model", "output/data"):
        assert f"algo-2: /opt/ml/{folder} is not there, or no folder: nothing is collected" in done.stderr


def test_a_disk_that_is_full_from_the_start(job: JobFolder, engine: docker.DockerClient) -> None:
    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = job.shoal("run", preexec_fn=no_room)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]


def test_a_description_nobody_can_take(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, "echo 1 > /opt/ml/model/m", hosts=1)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*SHOAL, "run", str(job.write()), "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert f"the description is in {job.run_folder}/job.json" in done.stderr.splitlines()[-1]
    assert job.described["TrainingJobStatus"] == "Completed"


def test_of_two_runs_of_one_name_at_once_one_runs(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, f"trap 'exit 0' TERM; {LOOP}", hosts=1)
    outputs = [job.path / "one", job.path / "two"]
    both = [job.start("--output", str(output)) for output in outputs]
    name = job.request["TrainingJobName"]
    until(lambda: any(each.poll() is not None for each in both), "end of one of them")
    loser = next(each for each in both if each.poll() is not None)
    assert loser.returncode == 2
    assert loser.stderr is not None
    [line] = [text for text in loser.stderr.read().splitlines() if text.startswith("shoal:")]
    assert f"a job called {name!r} is running" in line
    assert not (outputs[both.index(loser)] / name).exists()
    winner = both[1 - both.index(loser)]
    winner.send_signal(signal.SIGINT)
    assert winner.wait(60) == 130, winner.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a host's network")
def test_hosts_have_their_limits(job: JobFolder, engine: docker.DockerClient) -> None:
    script(job, f"df -k /dev/shm | tail -1; trap 'exit 0' TERM; {LOOP}", hosts=1)
    process = job.start("--host-cpus", "0.5", "--host-memory", "64m", "--link-rate", "8mbit")
    job.until_logged("ready", hosts=("algo-1",))
    container = engine.containers.get(f"{job.request['TrainingJobName']}-algo-1")
    config = container.attrs["HostConfig"]
    assert (config["NanoCpus"], config["Memory"], config["MemorySwap"]) == (500_000_000, 64 << 20, 64 << 20)
    assert int(job.log("algo-1").split()[1]) == 32 << 10
    pid = container.attrs["State"]["Pid"]
    command = ["nsenter", "-t", str(pid), "-n", TC, "qdisc", "show", "dev", "eth0"]

    def discipline() -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    until(lambda: "tbf" in discipline(), "limit of the link")  # it is set a moment after the start
    assert re.search(r"qdisc tbf .* rate 8Mbit burst 128Kb lat 50", discipline())
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_a_terminal_shows_a_line_for_each_host(job: JobFolder, engine: docker.DockerClient) -> None:
    job.request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    script(job, f"trap 'echo loss=0.25; exit 0' TERM; echo '[bold]data[/]'; echo step 7 loss=0.5; {LOOP}")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    process = job.start(stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    usage = r"algo-1 +running +cpu \d+ % +memory [\d.]+ [kMG]?B of [\d.]+ GB +in [\d.]+ k?B/s.* step 7  loss 0.5"
    text = read_terminal(ours, usage)
    assert "algo-2 | [bold]data[/]" in text
    until(lambda: "FinalMetricDataList" in job.described, "metrics of a job that runs")
    assert job.described["TrainingJobStatus"] == "InProgress"
    process.send_signal(signal.SIGINT)
    text = read_terminal(ours, "Stopped")
    os.close(ours)
    assert process.wait(60) == 130
    assert [(m["MetricName"], m["Value"]) for m in job.described["FinalMetricDataList"]] == [("loss", 0.25)]
    assert "note         loss 0.25" in text


def read_terminal(terminal: int, pattern: str) -> str:
    """Return what a terminal shows, up to something."""
    shown, text = b"", ""
    deadline = time.monotonic() + 60
    while not re.search(pattern, text):
        assert select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0], text
        shown += os.read(terminal, 4096)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
    return text


@pytest.mark.parametrize(
    ("make", "text", "said"),
    [
        (lambda text: limits.cpus(text, 2), "0", "--host-cpus '0': a number from 0.01 to 2, this machine's cores"),
        (lambda text: limits.cpus(text, 2), "2.1", "--host-cpus '2.1'"),
        (lambda text: limits.cpus(text, 2), "nan", "--host-cpus 'nan'"),
        (limits.memory, "4x", "--host-memory '4x': a size such as 512m or 4g is allowed, at least 6m"),
        (limits.memory, "5m", "--host-memory '5m'"),
        (limits.memory, f"{'9' * 400}g", "at least 6m, at most 1024t"),
        (limits.memory, "9999999t", "--host-memory '9999999t'"),
        (limits.link_rate, "1001gbit", "at least 8kbit, at most 1000gbit"),
        (limits.link_rate, "10", "--link-rate '10': a rate such as 100mbit or 1gbit is allowed, at least 8kbit"),
    ],
)
def test_limits_that_are_none(make: Callable[[str], object], text: str, said: str) -> None:
    with pytest.raises(ShoalError) as raised:
        make(text)
    assert said in str(raised.value)


@pytest.mark.parametrize("option", [("--host-memory", "4x"), ("--interrupt-after", "nan")])
def test_a_limit_that_is_none_begins_nothing(job: JobFolder, option: tuple[str, str]) -> None:
    done = job.shoal("run", *option)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not job.run_folder.exists()


def test_sizes_and_rates() -> None:
    assert [limits.memory(text) for text in ("512m", "4G", "1.5gib", "6291456")] == [
        512 << 20,
        4 << 30,
        3 << 29,
        6 << 20,
    ]
    assert [limits.link_rate(text) for text in ("8kbit", "1Gbit", "2.5gbit")] == [8_000, 10**9, 2_500_000_000]
    assert "burst 131072 " in " ".join(qdisc(8_000))
    assert "burst 12500000 " in " ".join(qdisc(10**10))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_on_a_disk_that_runs_full_the_end_is_told_all_the_same(job: JobFolder, engine: docker.DockerClient) -> None:
    disk = job.path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        fill = "head -c 3000000 /dev/zero | tr '\\0' x; echo; head -c 900000 /dev/urandom > /opt/ml/model/m;"
        script(job, f"{fill} printf 'ValueError: boom' > /opt/ml/output/failure; exit 3", hosts=1)
        done = job.shoal("run", "--output", str(disk))
        name = job.request["TrainingJobName"]
        assert done.returncode == 3
        assert done.stderr.splitlines()[-1].endswith("No space left on device")
        assert "algo-1.log is not complete: No space left on device" in done.stdout
        told = json.loads((disk / name / "job.json").read_text())
        assert (told["TrainingJobStatus"], told["FailureReason"]) == ("Failed", "ValueError: boom")
        assert told["Shoal"]["Hosts"][0]["ExitCode"] == 3
        left = sorted(str(path.relative_to(disk / name)) for path in disk.rglob("*") if path.is_file())
        assert left == ["job.json", "logs/algo-1.log"] or left == ["job.json", "logs/algo-1.failure", "logs/algo-1.log"]
    finally:
        subprocess.run(["umount", disk], check=True)
