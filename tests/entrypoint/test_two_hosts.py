"""Two real hosts, real sshd, real mpirun: how a job of several hosts starts, fails and ends."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Host, MakeCluster, until

SMDDP = {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}

RANK = """\
import json, os, socket, sys, time
rank, host = int(os.environ["RANK"]), os.environ["SM_CURRENT_HOST"]
"""

REPORT = (
    RANK
    + """
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
         "SM_CURRENT_HOST", "SM_HP_TEXT", "SM_CHANNEL_MY-DATA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
         "OMP_NUM_THREADS", "STAND_IN"]
values = {name: os.environ.get(name) for name in names}
values["argv"] = sys.argv
values["hostname"] = os.uname().nodename
values["asked"] = socket.gethostname()
with open(f"/opt/ml/output/data/rank-{rank}.json", "w") as file:
    json.dump(values, file)
print(f"I am rank {rank}", flush=True)
"""
)


def smddprun(cluster: Cluster) -> None:
    """A stand-in that shows that it was there; the real one comes with another wheel."""
    for host in cluster.hosts:
        tool = host.tools / "smddprun"
        tool.write_text(
            f"#!{sys.executable}\nimport os, sys\n"
            "os.environ['STAND_IN'] = 'smddprun'\nos.execvp(sys.argv[1], sys.argv[1:])\n"
        )
        tool.chmod(0o755)


def reports(cluster: Cluster) -> dict[int, tuple[str, dict[str, Any]]]:
    """What each rank saw, by rank, with the host whose folder it was found in."""
    found: dict[int, tuple[str, dict[str, Any]]] = {}
    for host in cluster.hosts:
        for path in (host.ml / "output" / "data").glob("rank-*.json"):
            found[int(path.stem.partition("-")[2])] = (host.name, json.loads(path.read_text()))
    return found


def test_every_rank_gets_its_environment(cluster: MakeCluster) -> None:
    two = cluster()
    smddprun(two)
    two.job({**SMDDP, "text": json.dumps("two\nlines 'quoted'")}, REPORT, inputs={"my-data": {}})
    two.start()
    assert two.wait() == [0, 0], two.hosts[0].stderr + two.hosts[1].stderr
    found = reports(two)
    assert sorted(found) == [0, 1, 2, 3]
    for rank, (folder, seen) in found.items():
        index = rank // 2
        assert folder == seen["hostname"] == seen["SM_CURRENT_HOST"] == f"algo-{index + 1}"
        assert [seen[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")] == [
            str(number) for number in (rank, 4, rank % 2, 2, index)
        ]
        assert (seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("algo-1", "7777")
        assert seen["SM_HP_TEXT"] == "two\nlines 'quoted'"
        assert seen["argv"] == ["train.py", "--text", "two\nlines 'quoted'"]
        assert seen["NCCL_SOCKET_IFNAME"] == seen["GLOO_SOCKET_IFNAME"] == "eth0"
        assert int(seen["OMP_NUM_THREADS"]) >= 1
        assert seen["SM_CHANNEL_MY-DATA"] == "/opt/ml/input/data/my-data"  # a name that shells drop
        assert seen["STAND_IN"] == "smddprun"
    assert sorted(line for line in two.hosts[0].stdout.splitlines() if "rank" in line) == [
        f"[algo-{rank // 2 + 1}:{rank}] I am rank {rank}" for rank in range(4)
    ]
    assert all(host.succeeded and not host.failed for host in two.hosts)
    assert [host.processes() for host in two.hosts] == [[], []]


def test_the_real_smddprun_agrees(cluster: MakeCluster) -> None:
    real = shutil.which("smddprun", path=str(Path(sys.executable).parent))
    if real is None:
        pytest.skip("the smddp wheel is not installed")
    two = cluster()
    for host in two.hosts:
        (host.tools / "smddprun").symlink_to(real)
    two.job(SMDDP, REPORT)
    two.start()
    assert two.wait() == [0, 0], two.hosts[0].stderr
    for rank, (_, seen) in reports(two).items():
        values = [seen[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
        assert values == [str(number) for number in (rank, 4, rank % 2, 2, rank // 2)]
        assert (seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("algo-1", "7777")


def test_a_plain_mpi_job_has_each_host_s_own_values(cluster: MakeCluster) -> None:
    """The toolkit's ranks on other hosts all see the first host's SM_CURRENT_HOST."""
    two = cluster()
    two.job({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "1"}, REPORT)
    two.start()
    assert two.wait() == [0, 0], two.hosts[0].stderr
    found = reports(two)
    assert [found[rank][1]["SM_CURRENT_HOST"] for rank in (0, 1)] == ["algo-1", "algo-2"]
    assert [found[rank][1]["GROUP_RANK"] for rank in (0, 1)] == ["0", "1"]


FAIL = (
    RANK
    + """
if rank == 3:
    print("about to fail", flush=True)
    raise ValueError("boom on purpose")
time.sleep(60)
"""
)


def test_a_rank_that_raises_fails_every_host_with_its_traceback(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(SMDDP, FAIL)
    started = time.monotonic()
    two.start()
    assert two.wait() == [1, 1]
    assert time.monotonic() - started < 15
    for host in two.hosts:
        assert host.failure.startswith(
            'ExecuteUserScriptError:\nExitCode 1\nErrorMessage "ValueError: boom on purpose\n'
        )
        assert "rank 3 on algo-2" in host.failure
        assert 'File "train.py", line' in host.failure
        assert 'raise ValueError("boom on purpose")' in host.failure
        assert len(host.failure.splitlines()[2]) < 200  # the exception itself comes first
        assert not host.succeeded
        assert host.processes() == []


def test_the_user_s_exit_code_is_every_host_s(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(
        SMDDP, RANK + "\nif rank == 2:\n    print('no more data', file=sys.stderr)\n    sys.exit(3)\ntime.sleep(60)\n"
    )
    two.start()
    assert two.wait() == [3, 3]
    for host in two.hosts:
        assert host.failure.startswith(
            'ExecuteUserScriptError:\nExitCode 3\nErrorMessage "rank 2 on algo-2\nno more data'
        )


def test_a_rank_killed_for_memory_is_named(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(SMDDP, RANK + "\nif rank == 1:\n    os.kill(os.getpid(), 9)\ntime.sleep(60)\n")
    two.start()
    assert two.wait() == [137, 137]
    for host in two.hosts:
        assert "rank 1 on algo-1" in host.failure
        assert 'ExtraInfo "OutOfMemory: Process killed by SIGKILL (signal 9)"' in host.failure


RUNNING = RANK + "\nopen(f'/opt/ml/output/data/running-{rank}', 'w').close()\ntime.sleep(60)\n"


def running(cluster: Cluster, ranks: int = 4) -> None:
    until(lambda: sum(len(list((host.ml / "output" / "data").glob("running-*"))) for host in cluster.hosts) == ranks)


@pytest.mark.parametrize(("dies", "lives"), [(1, 0), (0, 1)], ids=["worker", "leader"])
@pytest.mark.parametrize("launcher", [SMDDP, {}], ids=["smddp", "process"])
def test_a_host_that_dies_fails_the_other_within_seconds(
    cluster: MakeCluster, dies: int, lives: int, launcher: dict[str, str]
) -> None:
    two = cluster()
    two.job(launcher, RUNNING)
    two.start()
    running(two, 4 if launcher else 2)
    killed = time.monotonic()
    two.hosts[dies].signal(signal.SIGKILL)
    assert two.hosts[lives].wait(15) != 0
    assert time.monotonic() - killed < 10
    assert two.hosts[lives].failure.startswith(f"algo-{dies + 1}: died before the job ended")
    two.hosts[dies].wait(10)
    assert [host.processes() for host in two.hosts] == [[], []]


HANDLER = """
import signal
def stop(signum, frame):
    with open(f"/opt/ml/output/data/stopped-{rank}", "w") as file:
        file.write(str(signum))
    sys.exit(STOP_CODE)
signal.signal(signal.SIGTERM, stop)
"""


@pytest.mark.parametrize("stopped", [0, 1], ids=["leader", "worker"])
@pytest.mark.parametrize("launcher", [SMDDP, {}], ids=["smddp", "process"])
def test_sigterm_to_one_host_reaches_every_rank_s_handler(
    cluster: MakeCluster, stopped: int, launcher: dict[str, str]
) -> None:
    two = cluster()
    script = RUNNING.replace("\nopen", HANDLER.replace("STOP_CODE", "0") + "\nopen")
    two.job(launcher, script)
    two.start()
    count = 4 if launcher else 2
    running(two, count)
    two.hosts[stopped].signal(signal.SIGTERM)
    assert two.wait() == [0, 0]
    found = [path for host in two.hosts for path in (host.ml / "output" / "data").glob("stopped-*")]
    assert [path.read_text() for path in found] == ["15"] * count
    assert [host.processes() for host in two.hosts] == [[], []]


def test_sigterm_without_a_handler_ends_with_143_and_says_so(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(SMDDP, RUNNING)
    two.start()
    running(two)
    for host in two.hosts:
        host.signal(signal.SIGTERM)
    assert two.wait() == [143, 143]
    assert all("Stopped by SIGTERM" in host.failure for host in two.hosts)


def test_no_host_ends_before_all_are_done(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(
        {}, RUNNING.replace("time.sleep(60)", "while rank and not os.path.exists('/opt/ml/code/go'): time.sleep(0.02)")
    )
    two.start()
    running(two, 2)
    first, second = two.hosts
    until(lambda: not first.runs("train.py"))
    # Its own part is over; only the other host's is missing.
    assert second.runs("train.py")
    assert first.alive
    assert not first.succeeded
    (second.code / "go").touch()
    assert two.wait() == [0, 0]
    assert first.succeeded


def test_a_script_that_fails_on_one_host_fails_all(cluster: MakeCluster) -> None:
    two = cluster()
    two.job({}, RANK + "\nif rank == 1:\n    raise RuntimeError('disk is gone')\ntime.sleep(60)\n")
    two.start()
    assert two.wait(15) == [1, 1]
    for host in two.hosts:
        assert "RuntimeError: disk is gone" in host.failure
        assert "on algo-2" in host.failure


@pytest.mark.parametrize("late", [0, 1], ids=["leader", "worker"])
def test_a_failure_after_the_other_host_is_done_fails_both(cluster: MakeCluster, late: int) -> None:
    two = cluster()
    wait = f"while rank == {late} and not os.path.exists('/opt/ml/code/go'): time.sleep(0.02)\n"
    two.job({}, RUNNING.replace("time.sleep(60)", f"{wait}if rank == {late}: sys.exit(9)"))
    two.start()
    running(two, 2)
    early = two.hosts[1 - late]
    until(lambda: not early.runs("train.py"))
    assert early.alive
    (two.hosts[late].code / "go").touch()
    assert two.wait() == [9, 9]
    assert all(f"on algo-{late + 1}" in host.failure and not host.succeeded for host in two.hosts)


def test_a_host_that_never_comes_is_named(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(SMDDP, REPORT)
    two.hosts[0].start({"SHOAL_JOIN_TIMEOUT": "1"})
    # The leader waits a while for the missing host, to tell it; this one comes late and hears it.
    until(lambda: "algo-2" in two.hosts[0].stderr)
    two.hosts[1].start({})
    assert two.wait() == [1, 1]
    assert all(host.failure.startswith("algo-2: did not join the job within 1 s") for host in two.hosts)


def test_a_leader_that_never_comes_is_named(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(SMDDP, REPORT)
    two.hosts[1].start({"SHOAL_JOIN_TIMEOUT": "1"})
    assert two.hosts[1].wait() == 1
    assert two.hosts[1].failure.startswith("algo-1:7593: algo-2 could not join the job")


def test_requirements_that_cannot_be_installed_on_one_host_fail_all(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(SMDDP, REPORT)
    (two.hosts[1].code / "requirements.txt").write_text("./no-such-package\n")
    two.start()
    assert two.wait() == [1, 1]
    assert all(host.failure.startswith("InstallRequirementsError:\nExitCode 1\n") for host in two.hosts)
    assert all("no-such-package" in host.failure for host in two.hosts)
    assert reports(two) == {}


def test_private_keys_stay_where_they_were_made(cluster: MakeCluster) -> None:
    """The leader's key is only on the leader, the host's key only on the worker."""
    two = cluster()
    script = RANK + (
        "\nimport pathlib\nrun = pathlib.Path('/run/shoal')\n"
        "text = {str(p.name): oct(p.stat().st_mode & 0o777) for p in [run, *run.iterdir()]}\n"
        "open(f'/opt/ml/output/data/keys-{rank}.json', 'w').write(json.dumps(text))\n"
    )
    two.job(SMDDP, script)
    two.start()
    assert two.wait() == [0, 0]
    first, second = (
        json.loads((host.ml / "output" / "data" / f"keys-{rank}.json").read_text())
        for rank, host in ((0, two.hosts[0]), (2, two.hosts[1]))
    )
    assert "id_ed25519" in first
    assert "id_ed25519" not in second
    assert "host_key" in second
    assert "host_key" not in first
    for seen in (first, second):
        assert seen["shoal"] == "0o700"
    assert {name: second[name] for name in ("host_key", "environment", "authorized_keys")} == {
        "host_key": "0o600",
        "environment": "0o600",
        "authorized_keys": "0o600",
    }


def test_other_ports_can_be_chosen(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(SMDDP, REPORT)
    two.start({"SHOAL_CONTROL_PORT": "8001", "SHOAL_SSH_PORT": "8002"})
    assert two.wait() == [0, 0], two.hosts[0].stderr
    assert sorted(reports(two)) == [0, 1, 2, 3]


def test_strangers_do_not_get_in(cluster: MakeCluster) -> None:
    """A third machine on the same network is no host of the job, nor can it claim to be one."""
    three = cluster(3)
    three.names = ["algo-1", "algo-2"]
    *members, stranger = three.hosts
    three.hosts = members
    three.job(SMDDP, REPORT)
    members[0].start({})
    talk = (
        "import json, socket, time\n"
        "def say(host):\n"
        "    end = time.monotonic() + 10\n"
        "    while True:\n"
        "        try:\n"
        "            s = socket.create_connection(('10.99.0.1', 7593), timeout=5)\n"
        "            break\n"
        "        except OSError:\n"
        "            assert time.monotonic() < end\n"
        "            time.sleep(0.02)\n"
        "    s.sendall(json.dumps({'type': 'hello', 'host': host}).encode() + b'\\n')\n"
        "    print(s.makefile().read())\n"
        "say('algo-2')\nsay('algo-3')\nsay('algo-1')\n"
    )
    argv = ["ip", "netns", "exec", stranger.namespace, sys.executable, "-c", talk]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout
    answers = [json.loads(line) for line in said.splitlines() if line]
    assert [answer["type"] for answer in answers] == ["refused"] * 3
    assert "10.99.0.3 is not an address of algo-2" in answers[0]["reason"]
    assert "algo-3 is not one of this job's hosts" in answers[1]["reason"]
    members[1].start({})
    assert three.wait() == [0, 0]
    three.hosts = [*members, stranger]


def test_a_hundred_megabytes_do_not_grow_train(cluster: MakeCluster) -> None:
    """Output passes through two hosts' worth of pipes and leaves no trace in memory."""
    two = cluster()
    script = RANK + (
        "\nline = b'x' * 99 + b'\\n'\nfor _ in range(2500):\n    os.write(1, line * 100)\n"
        "if rank == 0:\n    open('/opt/ml/output/data/memory', 'w').write(open('/proc/1/status').read())\n"
    )
    two.job({}, script)
    two.start()
    assert two.wait() == [0, 0]
    assert len((two.hosts[0].folder / "stdout").read_bytes()) == 2500 * 100 * 100
    status = (two.hosts[0].ml / "output" / "data" / "memory").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 32 * 1024  # kB


TORCHRUN = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code", "text"),
    [
        (
            RANK + "\nif rank == 3:\n    raise ValueError('boom')\ntime.sleep(60)\n",
            1,
            "ValueError: boom\nrank 3 on algo-2\n",
        ),
        (RANK + "\nif rank == 2:\n    sys.exit(3)\ntime.sleep(60)\n", 3, "rank 2 on algo-2"),
        (REPORT, 0, None),
    ],
    ids=["raises", "exits", "ends well"],
)
def test_torchrun(cluster: MakeCluster, script: str, code: int, text: str | None) -> None:
    """torchrun alone leaves the other host waiting for minutes."""
    pytest.importorskip("torch")
    two = cluster()
    for host in two.hosts:
        (host.tools / "torchrun").symlink_to(Path(sys.executable).parent / "torchrun")
    two.job(TORCHRUN, script)
    two.start()
    assert two.wait(90) == [code, code], two.hosts[0].stderr
    for host in two.hosts:
        assert text is None or f'ErrorMessage "{text}' in host.failure
    assert code or sorted(reports(two)) == [0, 1, 2, 3]


def test_sigterm_while_hosts_are_missing_ends_at_once(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(SMDDP, REPORT)
    two.hosts[0].start({})
    until(lambda: listening(two.hosts[0], 7593))
    stopped = time.monotonic()
    two.hosts[0].signal(signal.SIGTERM)
    assert two.hosts[0].wait() == 143
    assert time.monotonic() - stopped < 5
    assert two.hosts[0].failure == "Stopped by signal 15 before the script was started."


def listening(host: Host, port: int) -> bool:
    argv = ["ip", "netns", "exec", host.namespace, "ss", "-Hltn", f"sport = {port}"]
    return bool(subprocess.run(argv, capture_output=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [SMDDP, {}], ids=["smddp", "process"])
def test_a_host_that_vanishes_from_the_network_is_noticed(cluster: MakeCluster, launcher: dict[str, str]) -> None:
    """No connection is closed: only the kernel's keep-alives can tell."""
    two = cluster()
    two.job(launcher, RUNNING)
    two.start({"SHOAL_HOST_TIMEOUT": "9"})
    running(two, 4 if launcher else 2)
    cut = time.monotonic()
    subprocess.run(["ip", "-n", two.hosts[1].namespace, "link", "set", "eth0", "down"], check=True)
    codes = two.wait(60)
    assert 0 not in codes
    assert time.monotonic() - cut < 30
    assert two.hosts[0].failure.startswith("algo-2: died before the job ended")
    assert two.hosts[1].failure.startswith("algo-1: died before the job ended")


def test_host_names_may_differ_from_the_job_s(cluster: MakeCluster) -> None:
    two = cluster()
    for index, host in enumerate(two.hosts):
        host.hostname = f"pod-{index}-x7f"
    two.job(SMDDP, REPORT)
    two.start()
    assert two.wait() == [0, 0], two.hosts[0].stderr
    seen = [report for _, (_, report) in sorted(reports(two).items())]
    assert [one["SM_CURRENT_HOST"] for one in seen] == ["algo-1", "algo-1", "algo-2", "algo-2"]
    assert [one["asked"] for one in seen] == ["algo-1", "algo-1", "algo-2", "algo-2"]
    assert [one["hostname"] for one in seen] == ["pod-0-x7f", "pod-0-x7f", "pod-1-x7f", "pod-1-x7f"]


def test_a_group_of_the_hosts_can_run_mpi_while_the_others_run_the_script(cluster: MakeCluster) -> None:
    """The first host of the group is not the first host of the job: keys still find their way."""
    three = cluster(3)
    groups = [
        {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "gpu", "instance_type": "ml.m5.xlarge", "hosts": ["algo-2", "algo-3"]},
    ]
    script = (
        "import os\nname = os.environ['SM_CURRENT_HOST'] + '-' + os.environ['RANK'] + '-' + os.environ['WORLD_SIZE']\n"
        "open('/opt/ml/output/data/' + name, 'w').write(os.environ['MASTER_ADDR'])\n"
    )
    three.job(
        {**SMDDP, "sagemaker_distribution_instance_groups": '["gpu"]'}, script, resource={"instance_groups": groups}
    )
    for host, group in zip(three.hosts, ("data", "gpu", "gpu"), strict=True):
        path = host.ml / "input" / "config" / "resourceconfig.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "current_group_name": group}))
    three.start()
    assert three.wait() == [0, 0, 0], three.hosts[1].stderr
    found = [sorted(path.name for path in (host.ml / "output" / "data").iterdir()) for host in three.hosts]
    assert found == [["algo-1-0-3"], ["algo-2-0-4", "algo-2-1-4"], ["algo-3-2-4", "algo-3-3-4"]]
