"""Servers and workers: what each process is told, how the job ends, and the example with torch's RPC."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from cluster import Cluster, Host, MakeCluster, until
from shoal_entrypoint.tagging import Tagger

EXAMPLE = Path(__file__).parents[2] / "examples" / "parameter_server"
FLAG = {"sagemaker_parameter_server_enabled": json.dumps("true")}

START = """\
import json, os, signal, sys, time
role, index, host = os.environ["ROLE_NAME"], int(os.environ["ROLE_RANK"]), os.environ["SM_CURRENT_HOST"]
def mark(name, text=""):
    with open(f"/opt/ml/output/data/{role}{index}-{name}", "w") as file:
        file.write(text)
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR",
         "MASTER_PORT", "PS_HOSTS", "WORKER_HOSTS", "TF_CONFIG", "TP_SOCKET_IFNAME", "OMP_NUM_THREADS"]
mark("told", json.dumps({name: os.environ.get(name) for name in names}))
"""
# A server that serves until it is told to end, and a worker that ends.
FOREVER = START + "print('I am', role, index, flush=True)\nif role == 'ps':\n    time.sleep(60)\n"


def marks(cluster: Cluster, name: str) -> dict[str, tuple[str, str]]:
    """What processes have written under this name: the host, and the text."""
    found = {}
    for host in cluster.hosts:
        for path in (host.ml / "output" / "data").glob(f"*-{name}"):
            found[path.name.partition("-")[0]] = (host.name, path.read_text())
    return found


def lines(host: Host) -> list[str]:
    return sorted(host.stdout.splitlines())


def test_two_hosts_know_their_roles_and_all_addresses(cluster: MakeCluster) -> None:
    two = cluster()
    flags = {"sagemaker_mpi_num_of_processes_per_host": "2", "sagemaker_parameter_server_count": "3"}
    two.job({**FLAG, **flags}, FOREVER)
    two.start({"SHOAL_PS_GRACE": "0.1"})
    assert two.wait() == [0, 0], two.hosts[0].stderr + two.hosts[1].stderr
    told = {name: (host, json.loads(text)) for name, (host, text) in marks(two, "told").items()}
    first, second = ["ps0", "ps2", "worker0", "worker1"], ["ps1", "worker2", "worker3"]
    assert {name: host for name, (host, _) in told.items()} == {
        **dict.fromkeys(first, "algo-1"),
        **dict.fromkeys(second, "algo-2"),
    }
    order = ["ps0", "ps1", "ps2", "worker0", "worker1", "worker2", "worker3"]
    local = {"ps0": 2, "ps1": 2, "ps2": 3, "worker0": 0, "worker1": 1, "worker2": 0, "worker3": 1}
    servers, workers = (
        [f"{told[name][0]}:{2222 + local[name]}" for name in order if name.startswith(role)]
        for role in ("ps", "worker")
    )
    for rank, name in enumerate(order):
        seen = told[name][1]
        assert (seen["RANK"], seen["WORLD_SIZE"]) == (str(rank), "7")
        assert seen["LOCAL_RANK"] == str(local[name])
        assert seen["LOCAL_WORLD_SIZE"] == ("4" if name in first else "3")
        assert seen["GROUP_RANK"] == ("0" if name in first else "1")
        assert (seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("algo-1", "7777")
        assert (seen["PS_HOSTS"], seen["WORKER_HOSTS"]) == (",".join(servers), ",".join(workers))
        assert seen["TP_SOCKET_IFNAME"] == "eth0"
        role, index = name[:-1], int(name[-1])
        assert seen["ROLE_WORLD_SIZE"] == ("3" if role == "ps" else "4")
        assert json.loads(seen["TF_CONFIG"]) == {
            "cluster": {"ps": servers, "worker": workers},
            "task": {"type": role, "index": index},
            "environment": "cloud",
        }
    assert lines(two.hosts[0]) == [f"[algo-1:{order.index(name)}] I am {name[:-1]} {name[-1]}" for name in first]
    assert all(host.succeeded and not host.failed and host.processes() == [] for host in two.hosts)


def test_servers_end_only_after_the_workers_of_every_host(cluster: MakeCluster) -> None:
    two = cluster()
    script = START + (
        "def stop(*_):\n    mark('stopped')\n    sys.exit(0)\nsignal.signal(signal.SIGTERM, stop)\nmark('running')\n"
        "if role == 'ps':\n    time.sleep(60)\n"
        "while index == 1 and not os.path.exists('/opt/ml/code/go'):\n    time.sleep(0.02)\n"
    )
    two.job(FLAG, script)
    two.start({"SHOAL_PS_GRACE": "0"})
    first, second = two.hosts
    until(lambda: len(marks(two, "running")) == 3)
    until(lambda: len(processes_of(first)) == 1)  # worker 0 has ended, the server serves on
    assert marks(two, "stopped") == {}
    (second.code / "go").touch()
    assert two.wait() == [0, 0], first.stderr
    assert list(marks(two, "stopped")) == ["ps0"]


def processes_of(host: Host) -> list[str]:
    """The processes that run the script."""
    found = []
    for pid in host.processes():
        try:
            if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def test_a_server_has_time_to_end_by_itself(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job(FLAG, START + "if role == 'ps':\n    time.sleep(1)\n    mark('saved')\n")
    one.start()
    assert one.wait() == [0], one.hosts[0].stderr
    assert list(marks(one, "saved")) == ["ps0"]


@pytest.mark.parametrize("name", ["ps0", "worker0", "worker1"])
def test_a_process_that_fails_fails_every_host(cluster: MakeCluster, name: str) -> None:
    two = cluster()
    two.job(FLAG, START + f"if role + str(index) == {name!r}:\n    raise ValueError('boom')\ntime.sleep(60)\n")
    two.start()
    assert two.wait(20) == [1, 1]
    rank, host = {"ps0": (0, 1), "worker0": (1, 1), "worker1": (2, 2)}[name]
    where = f"rank {rank} ({name[:-1]} {name[-1]}) on algo-{host}"
    for each in two.hosts:
        assert f'ExitCode 1\nErrorMessage "ValueError: boom\n{where}\nTraceback' in each.failure
        assert each.processes() == []


def test_a_server_that_dies_when_it_is_asked_to_end_has_not_succeeded(cluster: MakeCluster) -> None:
    """Its handler saves the model, and cannot."""
    one = cluster(1)
    script = START + (
        "def stop(*_):\n    raise OSError('no space')\nsignal.signal(signal.SIGTERM, stop)\nmark('running')\n"
        "while role == 'worker' and not os.path.exists('/opt/ml/output/data/ps0-running'):\n    time.sleep(0.02)\n"
        "if role == 'ps':\n    time.sleep(60)\n"
    )
    one.job(FLAG, script)
    one.start({"SHOAL_PS_GRACE": "0"})
    assert one.wait() == [1]
    assert "OSError: no space\nrank 0 (ps 0) on algo-1" in one.hosts[0].failure


def test_sigterm_reaches_the_workers_first(cluster: MakeCluster) -> None:
    """They may need the server to save what it knows."""
    two = cluster()
    script = START + (
        "def stop(*_):\n    mark('stopped', str(time.monotonic()))\n    time.sleep(0.3 if role == 'worker' else 0)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\nmark('running')\ntime.sleep(60)\n"
    )
    two.job(FLAG, script)
    two.start()
    until(lambda: len(marks(two, "running")) == 3)
    two.hosts[1].signal(signal.SIGTERM)
    assert two.wait() == [0, 0]
    stopped = marks(two, "stopped")
    assert sorted(stopped, key=lambda name: float(stopped[name][1]))[-1] == "ps0"
    assert len(stopped) == 3


def test_a_host_that_dies_ends_servers_and_workers(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(FLAG, START + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nmark('running')\ntime.sleep(60)\n")
    two.start()
    until(lambda: len(marks(two, "running")) == 3)
    two.hosts[1].signal(signal.SIGKILL)
    assert two.hosts[0].wait(20) == 1
    assert two.hosts[0].failure.startswith("algo-2: died before the job ended")
    assert two.hosts[0].processes() == []


@pytest.mark.parametrize("value", ["0", "true", "1.5", "many", "[1]"])
def test_a_number_of_servers_that_is_none_is_refused(cluster: MakeCluster, value: str) -> None:
    one = cluster(1)
    one.job({**FLAG, "sagemaker_parameter_server_count": value}, "pass")
    one.start()
    assert one.wait() == [1]
    text = "hyperparameters.json: sagemaker_parameter_server_count: a whole number of at least 1 was expected, not "
    assert one.hosts[0].failure.startswith(text)


def test_a_job_with_another_flag_has_no_servers(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({**FLAG, "sagemaker_mpi_enabled": "true"}, "import os\nassert 'ROLE_NAME' not in os.environ\n")
    one.start()
    assert one.wait() == [0], one.hosts[0].stderr


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_the_example_learns(cluster: MakeCluster, count: int) -> None:
    """Real torch, real RPC between the hosts."""
    pytest.importorskip("torch")
    made = cluster(count)
    values = json.loads((EXAMPLE / "job.json").read_text())["HyperParameters"]
    del values["sagemaker_submit_directory"]
    workers = {"sagemaker_mpi_num_of_processes_per_host": str(2 // count)}
    made.job({**values, **workers}, (EXAMPLE / "source" / "train.py").read_text())
    made.start({"PATH": f"{made.folder}/bin:{os.environ['PATH']}"})
    assert made.wait(120) == [0] * count, made.hosts[0].stderr
    said = made.hosts[0].stdout
    before, after = (float(re.findall(rf"{when}.*accuracy ([0-9.]+)", said)[0]) for when in ("before", "after"))
    assert before < 0.4
    assert after > 0.9
    assert f"after {2 * int(values['steps'])} updates" in said
    assert (made.hosts[0].ml / "model" / "model.pt").stat().st_size > 0


@pytest.mark.parametrize("cut", [1, 3, 7, 100])
def test_lines_are_tagged_whole(cut: int) -> None:
    text = b"one\n\ntwo\r50%\r100%\r\n  three"
    tagger = Tagger("[a:1] ")
    out = b"".join(tagger(text[start : start + cut]) for start in range(0, len(text), cut)) + tagger.rest()
    assert out == b"[a:1] one\n\n[a:1] two\r[a:1] 50%\r[a:1] 100%\r\n[a:1]   three\n"


def test_a_line_without_an_end_is_passed_on_in_pieces() -> None:
    tagger = Tagger("[a:1] ")
    out = b"".join(tagger(b"x" * 1000) for _ in range(1000)) + tagger.rest()
    assert out.count(b"x") == 1_000_000
    assert len(out) < 1_001_000


def test_a_command_learns_the_role_of_each_process(cluster: MakeCluster) -> None:
    """And a shell that is the command of a server is ended with what it has started."""
    one = cluster(1)
    words = ["sh", "-c", "echo $0 $1; [ $0 != ps ] || { sleep 60; echo never; }", "$(ROLE_NAME)", "$(RANK)"]
    one.job({**FLAG, "sagemaker_command": json.dumps(words)})
    one.start({"SHOAL_PS_GRACE": "0.1"})
    assert one.wait() == [0], one.hosts[0].stderr
    assert lines(one.hosts[0]) == ["[algo-1:0] ps 0", "[algo-1:1] worker 1"]


def test_a_group_of_the_hosts_can_have_servers_while_the_others_run_the_script(cluster: MakeCluster) -> None:
    """The host that hears that workers have ended is none of theirs, and does not keep servers waiting."""
    three = cluster(3)
    groups = [
        {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "gpu", "instance_type": "ml.m5.xlarge", "hosts": ["algo-2", "algo-3"]},
    ]
    script = (
        "import os, time\nrole = os.environ.get('ROLE_NAME', 'other')\n"
        "name = role + '-' + os.environ['RANK'] + '-' + os.environ['WORLD_SIZE']\n"
        "open('/opt/ml/output/data/' + name, 'w').close()\nif role == 'ps':\n    time.sleep(60)\n"
        "while role == 'other' and not os.path.exists('/opt/ml/code/go'):\n    time.sleep(0.02)\n"
    )
    flags = {**FLAG, "sagemaker_distribution_instance_groups": '["gpu"]'}
    three.job(flags, script, resource={"instance_groups": groups})
    for host, group in zip(three.hosts, ("data", "gpu", "gpu"), strict=True):
        path = host.ml / "input" / "config" / "resourceconfig.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "current_group_name": group}))
    three.start({"SHOAL_PS_GRACE": "0"})
    until(lambda: (three.hosts[1].ml / "output" / "data" / "ps-0-3").exists())
    until(lambda: processes_of(three.hosts[1]) == [])
    assert three.hosts[1].alive
    (three.hosts[0].code / "go").touch()
    assert three.wait() == [0, 0, 0], three.hosts[1].stderr
    found = [sorted(path.name for path in (host.ml / "output" / "data").iterdir()) for host in three.hosts]
    assert found == [["other-0-3"], ["ps-0-3", "worker-1-3"], ["worker-2-3"]]
