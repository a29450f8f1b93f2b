"""`train --check` on real hosts: namespaces of this machine, as in test_two_hosts.py, with the faults made for real."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import SOURCE, Host, MakeCluster, ip, until

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")

# docs/train-check.md names these; programs rely on them.
ROW_NAMES = {
    *("hosts", "reachable", "clock", "agreement", "resolved", "others", "job", "interface", "gpus", "neuron", "efa"),
    *("cpus", "memory", "shared_memory", "disk", "limits", "tools", "code", "entry_point", "requirements", "channels"),
    *("user", "kernel", "settings"),
}
MPI = {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}


def report(host: Host) -> dict[str, Any]:
    """What `--json` printed: one object, and nothing else on stdout."""
    found = json.loads(host.stdout)
    assert isinstance(found, dict)
    assert "Traceback" not in host.stderr, host.stderr
    return found


def rows(host: Host, name: str) -> list[dict[str, Any]]:
    return [row for row in report(host)["rows"] if row["name"] == name]


def problems(host: Host) -> list[str]:
    found = [row for row in report(host)["rows"] if row["state"] == "problem"]
    assert all(row["advice"] for row in found), found
    return [row["name"] for row in found]


def one(cluster: MakeCluster, mounts: str = "", env: dict[str, str] | None = None, **job: Any) -> Host:
    """A job of one host, checked."""
    made = cluster(1)
    made.job(job.pop("hyperparameters", {}), "raise SystemExit('the check must not run this')", **job)
    made.hosts[0].start(env or {}, mounts, arguments="--check --json")
    made.hosts[0].wait(60)
    return made.hosts[0]


def test_two_hosts_that_are_well(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, "raise SystemExit('the check must not run this')")
    two.start(arguments="--check --json")
    assert two.wait(60) == [0, 0], two.hosts[0].stdout + two.hosts[1].stdout
    for place, host in enumerate(two.hosts, start=1):
        found = report(host)
        assert {*found} == {"schema", "train", "host", "state", "problems", "notes", "rows"}
        assert (found["schema"], found["host"], found["problems"]) == (1, host.name, 0)
        assert {row["name"] for row in found["rows"]} == ROW_NAMES
        assert all({*row} == {"name", "state", "text", "advice", "values"} for row in found["rows"])
        (hosts,) = rows(host, "hosts")
        assert hosts["values"] == {
            "host": host.name,
            "place": place,
            "hosts": ["algo-1", "algo-2"],
            "found_by": "resourceconfig.json",
        }
        (resolved,) = rows(host, "resolved")
        assert resolved["values"]["hosts"]["algo-2"]["addresses"] == ["10.99.0.2"]
        (clock,) = rows(host, "clock")
        measured = clock["values"]["hosts"]["algo-2"]
        assert abs(measured["offset_seconds"]) <= measured["error_seconds"]  # it is one clock
        (interface,) = rows(host, "interface")
        assert (interface["values"]["chosen"], interface["values"]["address"]) == ("eth0", f"10.99.0.{place}")
        assert interface["values"]["mtu"] == 1500
        (job,) = rows(host, "job")
        assert job["values"] == {"launcher": "smddp", "processes_per_host": 2, "hosts": 2}
        (shm,) = rows(host, "shared_memory")
        assert shm["values"]["need_bytes"] == 2 * (4 << 20) + (32 << 20)
    assert "sshd" in rows(two.hosts[1], "tools")[0]["values"]["versions"]


def test_three_hosts_that_are_well(cluster: MakeCluster) -> None:
    three = cluster(3)
    three.job({}, "1")
    three.start(arguments="--check --json")
    assert three.wait(60) == [0, 0, 0], three.hosts[0].stdout
    for host in three.hosts:
        assert {*rows(host, "clock")[0]["values"]["hosts"]} == {"algo-2", "algo-3"}
        assert len(rows(host, "others")[0]["values"]["hosts"]) == 2
        assert {row["name"] for row in report(host)["rows"]} == ROW_NAMES


def test_the_check_leaves_nothing_behind(cluster: MakeCluster) -> None:
    host = cluster(1)
    host.job({}, "1")
    (host.hosts[0].ml / "input" / "config" / "resourceconfig.json").unlink()
    before = sorted(str(path) for path in host.hosts[0].ml.rglob("*"))
    host.start({"SHOAL_HOSTS": "algo-1"}, "--check --json")
    assert host.wait(60) == [0]
    assert sorted(str(path) for path in host.hosts[0].ml.rglob("*")) == before
    assert rows(host.hosts[0], "hosts")[0]["values"]["found_by"] == "SHOAL_HOSTS"


def test_a_host_that_is_not_started_is_named_on_all_others(cluster: MakeCluster) -> None:
    three = cluster(3)
    three.job({}, "1")
    for host in three.hosts[:2]:
        host.start({}, arguments="--check --json --timeout 8")
    assert [host.wait(60) for host in three.hosts[:2]] == [1, 1]
    for host in three.hosts[:2]:
        (reachable,) = rows(host, "reachable")
        assert reachable["state"] == "problem"
        assert reachable["text"] == "algo-3: did not join the job within 8 s of its start"
        assert problems(host) == ["reachable"]
        assert {row["name"] for row in report(host)["rows"]} == ROW_NAMES - {"clock", "agreement", "others"}


def test_a_host_alone_reports_its_own_part(cluster: MakeCluster) -> None:
    two = cluster()
    two.job({}, "1")
    two.hosts[1].start({"SHOAL_JOIN_TIMEOUT": "1"}, arguments="--check --json")
    assert two.hosts[1].wait(60) == 1
    assert problems(two.hosts[1]) == ["reachable"]
    assert "algo-1:7593" in rows(two.hosts[1], "reachable")[0]["text"]
    assert rows(two.hosts[1], "disk")[0]["state"] == "ok"


def test_a_host_that_runs_the_job_ends_with_a_word_about_it(cluster: MakeCluster) -> None:
    two = cluster()
    two.job({}, "import time; time.sleep(60)")
    two.hosts[0].start({}, arguments="--check --json")
    two.hosts[1].start({})
    assert [host.wait(60) for host in two.hosts] == [1, 1]
    text = "algo-2: started as `train`, but algo-1 as `train --check`"
    assert rows(two.hosts[0], "reachable")[0]["text"] == text
    assert two.hosts[1].failure == text


def test_a_check_beside_a_running_job_does_not_disturb_it(cluster: MakeCluster) -> None:
    """As `docker exec` starts it, on the host that the others connect to and on another one."""
    two = cluster()
    two.job({}, "import os, time\nwhile not os.path.exists('/opt/ml/end'): time.sleep(0.05)\n")
    two.start()
    until(
        lambda: all("is host" in host.stderr for host in two.hosts) and all(host.runs("train.py") for host in two.hosts)
    )
    for host in two.hosts:
        argv = [
            "nsenter",
            "-t",
            str(host.train),
            "-m",
            "-u",
            "-n",
            "-p",
            f"{two.folder}/bin/train",
            "--check",
            "--json",
        ]
        env = {"PATH": os.environ["PATH"], "HOME": "/root"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done.stderr
        bad = [row for row in json.loads(done.stdout)["rows"] if row["state"] == "problem"]
        assert [row["name"] for row in bad] == ["reachable"]
        assert "A job that is running has that port already" in bad[0]["advice"]
    for host in two.hosts:
        (host.ml / "end").touch()
    assert two.wait(60) == [0, 0]


def test_the_other_way_round_as_well(cluster: MakeCluster) -> None:
    two = cluster()
    two.job({}, "import time; time.sleep(60)")
    two.hosts[0].start({})
    two.hosts[1].start({}, arguments="--check --json")
    assert [host.wait(60) for host in two.hosts] == [1, 1]
    text = "algo-1: started as `train`, but algo-2 as `train --check`"
    assert rows(two.hosts[1], "reachable")[0]["text"] == text
    assert two.hosts[0].failure == text


@pytest.mark.skipif(not FAKETIME.exists(), reason="Debian's faketime is not installed")
@pytest.mark.parametrize(("ahead", "state"), [(7, "note"), (-7, "note"), (900, "problem")])
def test_a_clock_that_is_off_is_measured(cluster: MakeCluster, ahead: int, state: str) -> None:
    two = cluster()
    two.job({}, "1")
    shifted = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{ahead:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    two.hosts[0].start({}, arguments="--check --json")
    two.hosts[1].start(shifted, arguments="--check --json")
    code = int(state == "problem")
    assert two.wait(60) == [code, code]
    for host in two.hosts:
        (clock,) = rows(host, "clock")
        measured = clock["values"]["hosts"]["algo-2"]
        assert abs(measured["offset_seconds"] - ahead) <= measured["error_seconds"] + 0.001
        assert clock["state"] == state
        assert clock["advice"].startswith("Set the clocks")


def test_problems_of_one_host_are_named_on_the_others(cluster: MakeCluster) -> None:
    two = cluster()
    two.job({}, "1")
    (two.hosts[1].code / "train.py").unlink()
    (two.hosts[1].code / "other.py").touch()
    two.start(arguments="--check --json")
    assert two.wait(60) == [1, 1]
    assert problems(two.hosts[0]) == ["others"]
    assert rows(two.hosts[0], "others")[0]["text"] == "algo-2: entry_point"
    assert problems(two.hosts[1]) == ["entry_point"]
    assert "other.py" in rows(two.hosts[1], "entry_point")[0]["text"]


def test_hosts_that_differ(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, "1")
    ip("-n", two.hosts[1].namespace, "link", "set", "eth0", "mtu", "1400")
    fewer = {**MPI, "sagemaker_program": "train.py", "sagemaker_mpi_num_of_processes_per_host": "1"}
    (two.hosts[1].ml / "input" / "config" / "hyperparameters.json").write_text(json.dumps(fewer))
    two.start(arguments="--check --json")
    assert two.wait(60) == [1, 1]
    for host in two.hosts:
        assert [row["text"] for row in rows(host, "agreement")] == [
            "MTU: 1400 on algo-2; 1500 on algo-1",
            "processes per host: 1 on algo-2; 2 on algo-1",
        ]


def test_a_name_that_does_not_resolve(cluster: MakeCluster) -> None:
    two = cluster()
    two.job({}, "1")
    lines = (two.folder / "hosts").read_text().replace("algo-2", "algo-two")
    (two.folder / "hosts").write_text(lines)
    two.hosts[0].start({}, arguments="--check --json --timeout 1")
    assert two.hosts[0].wait(60) == 1
    assert rows(two.hosts[0], "resolved")[0]["text"] == "algo-2: not resolved"
    assert problems(two.hosts[0]) == ["reachable", "resolved"]


def test_an_interface_that_is_not_there_is_replaced(cluster: MakeCluster) -> None:
    host = one(cluster, resource={"network_interface_name": "ens99"})
    (found,) = rows(host, "interface")
    assert (found["state"], found["values"]["named"]) == ("note", "ens99")
    assert found["values"]["exists"]


def test_a_setting_that_names_no_interface(cluster: MakeCluster) -> None:
    host = one(cluster, env={"GLOO_SOCKET_IFNAME": "ib7", "NCCL_SOCKET_IFNAME": "eth"})
    assert problems(host) == ["interface"]
    assert "GLOO_SOCKET_IFNAME=ib7" in rows(host, "interface")[1]["text"]


@pytest.mark.parametrize(("megabytes", "state"), [(64, "note"), (1, "problem")])
def test_shared_memory(cluster: MakeCluster, megabytes: int, state: str) -> None:
    mounts = f"mount -t tmpfs -o size={megabytes}m tmpfs /dev/shm"
    host = one(cluster, mounts, hyperparameters=MPI)
    (found,) = rows(host, "shared_memory")
    assert (found["state"], found["values"]["total_bytes"]) == (state, megabytes << 20)
    assert "--shm-size" in found["advice"]


def test_a_full_disk(cluster: MakeCluster) -> None:
    mounts = "mkdir -p /opt/ml/output; mount -t tmpfs -o size=1m tmpfs /opt/ml/output"
    host = one(cluster, mounts)
    bad = [row for row in rows(host, "disk") if row["state"] == "problem"]
    assert [row["values"]["paths"] for row in bad] == [["/opt/ml/output"]]
    assert "almost full" in bad[0]["text"]


def test_a_disk_without_inodes(cluster: MakeCluster) -> None:
    mounts = "mkdir -p /opt/ml/model; mount -t tmpfs -o nr_inodes=1 tmpfs /opt/ml/model"
    bad = [row for row in rows(one(cluster, mounts), "disk") if row["state"] == "problem"]
    assert [row["values"]["paths"] for row in bad] == [["/opt/ml/model"]]
    assert "only 0 files more" in bad[0]["text"]


def test_output_that_is_read_only(cluster: MakeCluster) -> None:
    mounts = "mkdir -p /opt/ml/output; mount -t tmpfs tmpfs /opt/ml/output; mount -o remount,ro /opt/ml/output"
    bad = [row for row in rows(one(cluster, mounts), "disk") if row["state"] == "problem"]
    assert [row["values"]["writable"] for row in bad] == [False]
    assert "read-only" in bad[0]["text"]


def test_settings_are_shown_and_secrets_are_not(cluster: MakeCluster) -> None:
    host = one(cluster, env={"NCCL_DEBUG": "INFO", "SHOAL_TEST_TOKEN": "hunter2", "OTHER": "hunter3"})
    (found,) = rows(host, "settings")
    assert found["values"]["variables"]["NCCL_DEBUG"] == "INFO"
    assert "SHOAL_TEST_TOKEN" in found["values"]["variables"]
    assert "hunter" not in host.stdout + host.stderr


def test_few_files_allowed(cluster: MakeCluster) -> None:
    host = one(cluster, "ulimit -n 128")
    assert problems(host) == ["limits"]
    assert rows(host, "limits")[0]["values"]["nofile"] == 128


def test_missing_tools_and_channels(cluster: MakeCluster) -> None:
    made = cluster(1)
    made.job(MPI, "1", inputs={"train": {}, "test": {}})
    (made.hosts[0].ml / "input" / "data" / "train").mkdir(parents=True)
    python = Path(sys.executable).parent
    (made.folder / "few").mkdir()
    (made.folder / "few" / "env").symlink_to("/usr/bin/env")
    path = f"{made.folder}/few:{made.folder}/bin:{python}"
    made.hosts[0].start({"PATH": path}, "export PATH=$PATH", arguments="--check --json")
    assert made.hosts[0].wait(60) == 1
    assert problems(made.hosts[0]) == ["tools", "channels"]
    missing = [row for row in rows(made.hosts[0], "tools") if row["state"] == "problem"]
    assert [row["values"] for row in missing] == [{"missing": "mpirun"}]
    states = {row["values"]["channel"]: row["state"] for row in rows(made.hosts[0], "channels")}
    assert states == {"train": "note", "test": "problem"}


@pytest.mark.parametrize(
    ("name", "row"), [("hyperparameters", "job"), ("inputdataconfig", "job"), ("resourceconfig", "hosts")]
)
def test_a_broken_file_is_a_row_and_the_others_are_there(cluster: MakeCluster, name: str, row: str) -> None:
    made = cluster(1)
    made.job({}, "1")
    broken = made.hosts[0].ml / "input" / "config" / f"{name}.json"
    broken.write_text('{\n  "a": oops\n}')
    made.start(arguments="--check --json")
    assert made.wait(60) == [1]
    assert problems(made.hosts[0]) == [row]
    line = f"/opt/ml/input/config/{name}.json: line 2, column 8: not JSON: Expecting value"
    assert rows(made.hosts[0], row)[0]["text"] == line
    assert {"interface", "disk", "memory", "limits"} < {each["name"] for each in report(made.hosts[0])["rows"]}
    # `train` itself ends with the same line.
    made.start()
    assert made.wait(60) == [1]
    assert made.hosts[0].failure == line


def test_a_check_that_waits_can_be_stopped(cluster: MakeCluster) -> None:
    two = cluster()
    two.job({}, "1")
    two.hosts[0].start({}, arguments="--check --json")
    until(lambda: "waiting for algo-2" in two.hosts[0].stderr)
    two.hosts[0].signal(signal.SIGTERM)
    assert two.hosts[0].wait(60) == 143
    assert "check" in problems(two.hosts[0])


def local(folder: Path) -> dict[str, str]:
    """The environment of a check on this machine itself: a job of one host."""
    (folder / "code").mkdir()
    (folder / "code" / "train.py").touch()
    names = {"SAGEMAKER_BASE_DIR": str(folder), "SAGEMAKER_PROGRAM": "train.py", "SHOAL_HOSTS": os.uname().nodename}
    return {**names, "PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "TERM": "xterm", "LANG": "C"}


def on_a_terminal(env: dict[str, str], columns: int) -> str:
    """What a person sees, of a terminal that wide."""
    near, far = pty.openpty()
    subprocess.run(["stty", "cols", str(columns), "-onlcr"], stdin=far, check=True)
    process = subprocess.Popen([sys.executable, "-m", "shoal_entrypoint", "--check"], env=env, stdout=far)
    os.close(far)
    said = b""
    try:
        while chunk := os.read(near, 65536):
            said += chunk
    except OSError:  # how a terminal says that nobody writes any more
        pass
    os.close(near)
    assert process.wait(60) in (0, 1)
    return said.decode()


def test_a_terminal_gets_colours_and_its_own_width(tmp_path: Path) -> None:
    env = local(tmp_path)
    shown = on_a_terminal(env, 70)
    assert "\033[32mok     \033[0m  hosts" in shown
    plain = on_a_terminal({**env, "NO_COLOR": "1"}, 70)
    assert "\033" not in plain
    assert max(len(line) for line in plain.splitlines()) <= 70
    assert "\033" not in on_a_terminal({**env, "TERM": "dumb"}, 70)


def test_a_pipe_gets_plain_lines(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal_entrypoint", "--check"],
        env=local(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    title, *lines, total = done.stdout.splitlines()
    assert title == f"train 0.1.0 --check on {os.uname().nodename}, host 1 of 1"
    assert "\033" not in done.stdout
    starts = {line[:9].strip() for line in lines if not line.startswith(" ")}
    assert starts <= {"ok", "note", "problem"}
    assert ("no problems" in total) == (done.returncode == 0)
    assert done.stderr == ""


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "shoal_entrypoint", "--check"]
    done = subprocess.run(argv, env=local(tmp_path), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--version"], 0, "train 0.1.0"),
        (["--help"], 0, "--check"),
        (["--frobnicate"], 2, "unrecognized arguments: --frobnicate"),
        (["train"], 2, "unrecognized arguments: train"),
        (["--json"], 2, "--json and --timeout go with --check"),
        (["--check", "--timeout", "soon"], 2, "'soon': a number of seconds above 0 was expected"),
        (["--check", "--timeout", "nan"], 2, "'nan': a number of seconds above 0 was expected"),
        (["--che"], 2, "unrecognized arguments: --che"),
    ],
)
def test_arguments(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    argv = [sys.executable, "-m", "shoal_entrypoint", *arguments]
    done = subprocess.run(argv, env=local(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert says in (done.stderr if code else done.stdout)
    assert not code or done.stderr.startswith("usage: train ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "output").exists()


# What a host has is its own affair; the rest is known.
SUMMARY = r"train: {host} is host {place} of 2 \(.*json\), eth0, \d+ CPUs, \d+ GPUs, (no )?EFA, smddp x 2, shm 64 MB"


def test_every_job_says_what_its_hosts_are(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, "print('well')", resource={"network_interface_name": "ens99"})
    mounts = "mount -t tmpfs -o size=64m tmpfs /dev/shm; mkdir -p /opt/ml/model"
    for host in two.hosts:
        host.start({}, f"{mounts}; mount -t tmpfs -o size=1m tmpfs /opt/ml/model")
    assert two.wait(60) == [0, 0]
    for place, host in enumerate(two.hosts, start=1):
        lines = host.stderr.splitlines()
        first = SUMMARY.format(host=host.name, place=place)
        assert sum(re.fullmatch(first, line) is not None for line in lines) == 1, host.stderr
        assert "train: note: ens99 does not exist here, eth0 is used" in lines
        assert "train: note: /opt/ml/model: the disk is almost full: 1 MB free" in lines
        assert any(line.startswith("train: note: /dev/shm has 64 MB for 2 processes: ") for line in lines)
