"""A job with a secret: who knows it gets in, who does not is told so, and nobody on the wire can speak for a host."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Host, MakeCluster, until
from shoal_entrypoint.control import secret as secrets
from shoal_entrypoint.control.secret import LEADER, WORKER, Session
from shoal_entrypoint.outcome import JobError

SECRET = {"SHOAL_JOB_SECRET": "correct horse battery staple"}
MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
SHOW = (
    "import json, os\nvalues = {name: value for name, value in os.environ.items() if 'JOB_SECRET' in name}\n"
    "open(f'/opt/ml/output/data/secret-{os.environ[\"RANK\"]}', 'w').write(json.dumps(values))\n"
)


def shown(hosts: list[Host]) -> list[dict[str, str]]:
    """The secrets that each rank saw."""
    found = [path for host in hosts for path in (host.ml / "output" / "data").glob("secret-*")]
    return [json.loads(path.read_text()) for path in found]


@pytest.mark.parametrize("launcher", [MPI, {}], ids=["mpi", "process"])
def test_hosts_with_the_secret_run_and_ranks_get_one_made_from_it(
    cluster: MakeCluster, launcher: dict[str, str]
) -> None:
    two = cluster()
    two.job(launcher, SHOW)
    two.start(SECRET)
    assert two.wait() == [0, 0], two.hosts[0].stderr + two.hosts[1].stderr
    values = shown(two.hosts)
    assert len(values) == (4 if launcher else 2)
    assert all(value == secrets.for_ranks(SECRET) for value in values)
    assert SECRET["SHOAL_JOB_SECRET"] not in json.dumps(values)


def test_a_secret_of_the_user_s_own_for_smddp_wins(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, SHOW)
    two.start({**SECRET, "SMDDP_JOB_SECRET": "mine"})
    assert two.wait() == [0, 0], two.hosts[0].stderr
    assert shown(two.hosts) == [{"SMDDP_JOB_SECRET": "mine"}] * 4


def test_the_secret_can_be_in_a_file(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, SHOW)
    paths = [host.ml / "input" / "config" / "secret" for host in two.hosts]
    for path, mode in zip(paths, (0o400, 0o644), strict=True):
        path.write_text("correct horse battery staple\n")
        path.chmod(mode)
    two.start({"SHOAL_JOB_SECRET_FILE": "/opt/ml/input/config/secret"})
    assert two.wait() == [0, 0], two.hosts[0].stderr
    assert shown(two.hosts) == [secrets.for_ranks(SECRET)] * 4
    warning = "train: SHOAL_JOB_SECRET_FILE: /opt/ml/input/config/secret: everybody may read it (mode 0644)"
    assert [host.stderr.count(warning) for host in two.hosts] == [0, 1]


@pytest.mark.parametrize(
    ("leader", "worker", "text"),
    [
        (SECRET, {}, "algo-1 has a secret for this job, algo-2 has none"),
        ({}, SECRET, "algo-2 has a secret for this job, algo-1 has none"),
        (SECRET, {"SHOAL_JOB_SECRET": "another"}, "has another secret than algo-"),
    ],
    ids=["leader only", "worker only", "different"],
)
def test_another_secret_fails_its_host_and_not_the_job(
    cluster: MakeCluster, leader: dict[str, str], worker: dict[str, str], text: str
) -> None:
    two = cluster()
    two.job({}, SHOW)
    first, second = two.hosts
    first.start(leader)
    second.start(worker)
    assert second.wait() == 1
    assert text in second.failure
    assert secrets.SAME_EVERYWHERE in second.failure
    assert len(second.failure.splitlines()) == 1
    until(lambda: text in first.stderr)
    assert first.alive
    (second.ml / "output" / "failure").unlink()
    second.start(leader)  # the right one
    assert two.wait() == [0, 0], first.stderr


def test_a_leader_says_why_the_missing_host_was_refused(cluster: MakeCluster) -> None:
    two = cluster()
    two.job({}, SHOW)
    two.hosts[0].start({**SECRET, "SHOAL_JOIN_TIMEOUT": "6"})
    two.hosts[1].start({"SHOAL_JOB_SECRET": "another"})
    assert two.hosts[1].wait() == 1
    until(
        lambda: "did not join" in two.hosts[0].stderr or two.hosts[0].failed or "waiting up to" in two.hosts[0].stderr
    )
    two.hosts[1].start({**SECRET, "SHOAL_JOIN_TIMEOUT": "6"})  # hears how it ended
    assert two.wait(60) == [1, 1]
    assert re.match(r"algo-2: did not join .*\(refused: algo-2 at 10.99.0.2 has another secret", two.hosts[0].failure)


MAN_IN_THE_MIDDLE = """
import socket, sys, threading, time
inside = None
while inside is None:
    try:
        inside = socket.create_connection(("127.0.0.1", 7593))
    except OSError:
        time.sleep(0.05)
server = socket.create_server(("", 9000))
print("listening", flush=True)
outside, _ = server.accept()
def up():
    while data := outside.recv(65536):
        inside.sendall(data)
    inside.shutdown(socket.SHUT_RDWR)
threading.Thread(target=up, daemon=True).start()
for line in inside.makefile("rb"):
    outside.sendall(line)
    if b'"go"' in line:
        outside.sendall(sys.argv[1].encode() + b"\\n")
"""


@pytest.mark.parametrize("env", [SECRET, {}], ids=["secret", "none"])
def test_a_man_on_the_wire_cannot_say_how_a_job_ended(cluster: MakeCluster, env: dict[str, str]) -> None:
    """Without a secret he can: that is what it is for."""
    two = cluster()
    two.job({}, "import time\ntime.sleep(8)\n")
    first, second = two.hosts
    with (two.folder / "hosts").open("a") as names:
        names.write("127.0.0.1 algo-2\n")  # where the man's end of the connection is, for the leader
    first.start(env)
    result = json.dumps({"type": "result", "exit_code": 7, "failure": "made up"})
    argv = ["ip", "netns", "exec", first.namespace, sys.executable, "-c", MAN_IN_THE_MIDDLE, result]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as man:
        assert man.stdout is not None
        man.stdout.readline()
        second.start({**env, "SHOAL_CONTROL_PORT": "9000"})
        try:
            if not env:
                second.wait()
                assert second.failure == "made up"
                return
            assert second.wait() == 1
            assert second.failure.startswith("algo-1: a line between the hosts was changed, inserted or lost")
            assert first.wait(60) == 1  # the connection is gone: that is all he gets
        finally:
            man.kill()


NOISE = r"""
import json, socket, time
def connect():
    return socket.create_connection(("10.99.0.1", 7593), timeout=5)
for attempt in range(200):
    try:
        connect().close()
        break
    except OSError:
        time.sleep(0.05)
held = [connect() for _ in range(200)]
lines = [b"[" * 4000 + b"\n", b"x" * 1_000_000, b"\xff\xfe\n", b"{}\n", b'{"type": "result", "exit_code": 0}\n']
lines += [b'{"type": "answer"}\n', b'{"type": "hello"}\n', b'{"type": "hello", "host": "algo-2", "nonce": 7}\n']
lines += [b'{"type": "hello", "host": "algo-2", "nonce": "' + b"0" * 64 + b'"}\n{"type": "answer"}\n']
for number in range(100):
    lines.append(json.dumps({"type": "hello", "host": "x\ntrain: failed %d\n\ud800" % number}).encode() + b"\n")
for line in lines:
    try:
        one = connect()
        held.append(one)
        one.sendall(line)
    except OSError:
        pass
print("done", flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("env", [SECRET, {}], ids=["secret", "none"])
def test_strangers_cannot_make_a_leader_fail_block_or_grow(cluster: MakeCluster, env: dict[str, str]) -> None:
    three = cluster(3)
    three.names = ["algo-1", "algo-2"]
    first, second, stranger = three.hosts
    three.hosts = [first, second]
    three.job({}, "open('/opt/ml/output/data/memory', 'w').write(open('/proc/1/status').read())\n")
    first.start(env)
    argv = ["ip", "netns", "exec", stranger.namespace, sys.executable, "-c", NOISE]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as noise:
        assert noise.stdout is not None
        assert noise.stdout.readline() == "done\n"
        second.start(env)
        assert three.wait() == [0, 0], first.stderr
        noise.kill()
    lines = first.stderr.splitlines()
    assert not any(line.startswith("train: failed") for line in lines)  # a name with a new line in it
    assert 0 < sum(line.startswith("train: refused a connection: ") for line in lines) <= 20
    status = (first.ml / "output" / "data" / "memory").read_text()
    assert next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) < 32 * 1024  # kB
    three.hosts = [first, second, stranger]


def session(role: bytes, secret: bytes = b"s", host: str = "algo-2", nonce: str = "a") -> Session:
    return Session(secret, role, host, nonce, "b")


def test_a_line_is_taken_once_in_its_place_from_its_side() -> None:
    worker, leader = session(WORKER), session(LEADER)
    first, second = worker.sign(b"one"), worker.sign(b"two")
    assert leader.verify(first) == b"one"
    assert leader.verify(first) is None  # repeated
    assert session(LEADER).verify(second) is None  # the one before it was left out
    assert session(WORKER).verify(first) is None  # sent back
    assert session(LEADER).verify(first.replace(b"one", b"own")) is None
    assert session(LEADER).verify(b"one") is None
    for other in (session(LEADER, b"t"), session(LEADER, host="algo-3"), session(LEADER, nonce="c")):
        assert other.verify(first) is None


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"SHOAL_JOB_SECRET": ""}, "SHOAL_JOB_SECRET: is empty. Give every host the same"),
        ({"SHOAL_JOB_SECRET": " \n"}, "SHOAL_JOB_SECRET: is empty. "),
        ({"SHOAL_JOB_SECRET_FILE": "{empty}"}, "SHOAL_JOB_SECRET_FILE: {empty}: is empty. "),
        ({"SHOAL_JOB_SECRET_FILE": "{folder}"}, "SHOAL_JOB_SECRET_FILE: {folder}: cannot be read: Is a directory"),
        ({"SHOAL_JOB_SECRET_FILE": "/none"}, "SHOAL_JOB_SECRET_FILE: /none: cannot be read: No such file"),
        ({"SHOAL_JOB_SECRET_FILE": "/none", **SECRET}, "SHOAL_JOB_SECRET and SHOAL_JOB_SECRET_FILE are both set"),
    ],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, env: dict[str, str], text: str) -> None:
    (tmp_path / "empty").write_text("\nsecond line\n")
    places = {"empty": str(tmp_path / "empty"), "folder": str(tmp_path)}
    with pytest.raises(JobError) as error:
        secrets.find({name: value.format(**places) for name, value in env.items()})
    assert error.value.text.startswith(text.format(**places))
