"""Who cannot get into a job, where its secrets are not, and that it needs no root."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Host, MakeCluster, until

MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
REPORT = """
import json, os, sys
seen = {name: os.environ.get(name) for name in ("RANK", "SM_CURRENT_HOST", "WORLD_SIZE", "SMDDP_JOB_SECRET")}
seen["uid"] = os.getuid()
part = f"/opt/ml/output/data/part-{os.environ['RANK']}"
with open(part, "w") as file:
    file.write(json.dumps(seen))
os.rename(part, part.replace("part-", "rank-"))  # whole as soon as it is there: somebody may be waiting for it
"""
UNTIL_GO = REPORT + "import time\nwhile not os.path.exists('/opt/ml/code/go'): time.sleep(0.02)\n"


def reports(hosts: list[Host]) -> list[dict[str, object]]:
    """What each rank wrote, by rank."""
    paths = [path for host in hosts for path in (host.ml / "output" / "data").glob("rank-*")]
    return [json.loads(path.read_text()) for path in sorted(paths, key=lambda path: path.name)]


def inside(host: Host, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run something on the host's network."""
    command = ["ip", "netns", "exec", host.namespace, *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


@contextmanager
def listening(host: Host, port: int) -> Iterator[None]:
    """Another program of the host that has a port."""
    script = f"import socket, time\ns = socket.create_server(('', {port}))\nprint(flush=True)\ntime.sleep(600)\n"
    argv = ["ip", "netns", "exec", host.namespace, sys.executable, "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def test_a_host_that_is_not_in_the_job_cannot_log_in(cluster: MakeCluster, tmp_path: Path) -> None:
    """With no key, with a key of its own, with the job's very key; nor is there a sshd on the first host."""
    three = cluster(3)
    three.names = ["algo-1", "algo-2"]
    first, second, stranger = three.hosts
    three.hosts = [first, second]
    three.job(MPI, UNTIL_GO)
    three.start({"SHOAL_JOB_SECRET": "abc"})
    until(lambda: len(reports(three.hosts)) == 4, 30)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "own"], check=True)
    stolen = tmp_path / "stolen"
    stolen.write_bytes(Path(f"/proc/{first.train}/root/run/shoal/id_ed25519").read_bytes())
    stolen.chmod(0o600)
    options = ["-F", "/dev/null", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    options += ["-o", "BatchMode=yes", "-o", "IdentityAgent=none", "-o", "IdentitiesOnly=yes"]
    for key in ("/dev/null", str(tmp_path / "own"), str(stolen)):
        done = inside(stranger, "ssh", *options, "-i", key, "root@10.99.0.2", "true")
        assert done.returncode == 255, key
        assert "Permission denied (publickey)" in done.stderr
    assert "Connection refused" in inside(stranger, "ssh", *options, "root@10.99.0.1", "true").stderr
    # The key is what was asked for: from the first host it opens the door, so it is the address that closes it.
    assert inside(first, "ssh", *options, "-i", str(stolen), "root@10.99.0.2", "exit 7").returncode == 7
    for host in three.hosts:
        (host.code / "go").touch()
    assert three.wait() == [0, 0], first.stderr
    three.hosts = [first, second, stranger]


def test_a_free_port_is_taken_where_22_is_not(cluster: MakeCluster) -> None:
    three = cluster(3)
    three.job(MPI, REPORT)
    with listening(three.hosts[1], 22):
        three.start()
        assert three.wait(60) == [0, 0, 0], three.hosts[0].stderr
    assert [report["SM_CURRENT_HOST"] for report in reports(three.hosts)] == [
        f"algo-{index}" for index in (1, 1, 2, 2, 3, 3)
    ]


def test_a_port_that_was_asked_for_and_is_taken_is_named(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, REPORT)
    with listening(two.hosts[1], 2222):
        two.start({"SHOAL_SSH_PORT": "2222"})
        assert two.wait() == [1, 1]
    text = "SHOAL_SSH_PORT: port 2222 cannot be used on this host: Address already in use."
    assert all(host.failure.startswith(text) for host in two.hosts)


SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "aws-secret-7f3a",
    "AWS_ACCESS_KEY_ID": "aws-id-7f3a",
    "HF_TOKEN": "hf-secret-7f3a",
    "SHOAL_JOB_SECRET": "job-secret-7f3a",
}
# Run by every rank, as root: every file that the job has made, with its mode, and every command line.
SEARCH = """
import glob, stat
words = [b"7f3a", os.environ["SMDDP_JOB_SECRET"].encode()]
found = []
temporary = glob.glob("/tmp/ompi*") + glob.glob("/tmp/shoal*")
for top in ("/run", "/opt/ml", "/etc", "/var/tmp", "/dev/shm", "/root", *temporary):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                state = os.lstat(path)
                if stat.S_ISREG(state.st_mode) and state.st_mtime > STARTED and state.st_size < 1 << 24:
                    if any(word in open(path, "rb").read() for word in words):
                        found.append([path, state.st_mode & 0o777])
            except OSError:
                pass
lines = []
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        line = open(path, "rb").read()
    except OSError:
        continue
    lines += [line.decode()] if any(word in line for word in words) else []
here = os.environ["AWS_SECRET_ACCESS_KEY"] + os.environ["HF_TOKEN"]
text = json.dumps({"files": found, "lines": lines, "here": here, "commands": len(glob.glob("/proc/[0-9]*/cmdline"))})
open(f"/opt/ml/output/data/found-{os.environ['RANK']}", "w").write(text)
"""


def test_secrets_are_in_no_file_that_others_may_read_and_on_no_command_line(cluster: MakeCluster) -> None:
    two = cluster()
    options = {"sagemaker_mpi_custom_mpi_options": "-x HF_TOKEN"}
    two.job({**MPI, **options}, f"STARTED = {time.time() - 5}\n" + REPORT + SEARCH)
    two.start(SECRETS)
    assert two.wait(60) == [0, 0], two.hosts[0].stderr
    found = [
        json.loads(path.read_text()) for host in two.hosts for path in (host.ml / "output" / "data").glob("found-*")
    ]
    assert len(found) == 4
    for one in found:
        assert one["here"] == "aws-secret-7f3ahf-secret-7f3a"  # they do reach the ranks
        assert one["commands"] > 2
        assert one["lines"] == []
        files = {path for path, _ in one["files"]} - {"/opt/ml/code/train.py"}  # which spells the word it looks for
        own = ("/opt/ml/output/data/rank-", "/opt/ml/output/data/found-")  # what the test's own ranks write
        assert {path for path in files if not path.startswith(own)} <= {
            "/run/shoal/environment",
            "/run/shoal/rank.env",
        }
        assert all(mode == 0o600 for path, mode in one["files"] if path.startswith("/run/"))
        assert "/run/shoal/rank.env" in files
    for host in two.hosts:
        assert "7f3a" not in host.stdout + host.stderr


def test_a_failure_file_has_no_secrets(cluster: MakeCluster) -> None:
    two = cluster()
    options = {"sagemaker_mpi_custom_mpi_options": "-x DB_PASSWORD=pw-7f3a -x INDEX=https://me:pw-7f3a@example.org/x"}
    two.job({**MPI, **options, "hf_token": "hp-7f3a", "lr": "0.1"}, "raise SystemExit(3)\n")
    two.start(SECRETS)
    assert two.wait() == [3, 3]
    for host in two.hosts:
        assert "7f3a" not in host.failure + host.stderr
        assert "-x DB_PASSWORD=****** -x INDEX=https://******@example.org/x" in host.failure
        assert host.failure.endswith('train.py --hf_token ****** --lr 0.1"')


@pytest.mark.parametrize("launcher", [MPI, {}], ids=["mpi", "process"])
def test_a_job_needs_no_root(cluster: MakeCluster, launcher: dict[str, str]) -> None:
    """No home, no writable /run, port 22 not allowed, and another TMPDIR on each host."""
    two = cluster()
    two.job(launcher, REPORT)
    for host in two.hosts:
        (host.ml / f"tmp-{host.name}").mkdir()
        host.start_unprivileged({"TMPDIR": f"/opt/ml/tmp-{host.name}", "SHOAL_JOB_SECRET": "abc"})
    assert two.wait(60) == [0, 0], two.hosts[0].stderr + two.hosts[1].stderr
    seen = reports(two.hosts)
    assert len(seen) == (4 if launcher else 2)
    assert all(one["uid"] == 1000 and one["SMDDP_JOB_SECRET"] for one in seen)
    assert [list((host.ml / f"tmp-{host.name}").glob("shoal-*")) for host in two.hosts] == [[], []]
    assert [host.processes() for host in two.hosts] == [[], []]


def test_a_job_without_root_is_stopped_as_any_other(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, UNTIL_GO)
    for host in two.hosts:
        host.start_unprivileged({})
    until(lambda: len(reports(two.hosts)) == 4, 30)
    two.hosts[1].signal(signal.SIGTERM)
    assert two.wait() == [143, 143]
    assert all("Stopped by SIGTERM" in host.failure for host in two.hosts)
    assert [host.processes() for host in two.hosts] == [[], []]


def test_a_submit_directory_that_is_a_url_keeps_its_password(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({"sagemaker_submit_directory": "https://me:pw-7f3a@example.org/code.tar.gz"})
    one.start()
    assert one.wait() == [1]
    assert one.hosts[0].failure.startswith(
        "sagemaker_submit_directory: https://******@example.org/code.tar.gz: no such file or directory"
    )


def test_a_user_without_a_name_is_told_what_ssh_needs(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, REPORT)
    for host in two.hosts:
        host.start_unprivileged({}, passwd="root:x:0:0::/root:/bin/sh\n")
    assert two.wait() == [1, 1]
    assert all(host.failure.startswith("user 1000: has no line in /etc/passwd") for host in two.hosts)


def test_a_directory_for_keys_that_cannot_be_made_is_named(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job(MPI, REPORT)
    one.hosts[0].start_unprivileged({"SHOAL_RUN_DIR": "/run/mine"})
    assert one.wait() == [1]
    assert one.hosts[0].failure.startswith("/run/mine: cannot be made for the job's keys: [Errno 13] Permission denied")


def test_a_root_without_a_writable_run_is_told_what_sshd_needs(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, REPORT)
    for host in two.hosts:
        host.start({}, "mount -o remount,ro /run")
    assert two.wait() == [1, 1]
    for host in two.hosts:
        assert "/run/sshd" in host.failure
        assert len(host.failure.splitlines()) == 1


def test_hosts_with_domains_log_in_too(cluster: MakeCluster) -> None:
    """On ports of their own, so that what ssh looks up by name must be found by the name that mpirun says."""
    two = cluster(2, ["job-0.net.ns.svc.cluster.local", "job-1.net.ns.svc.cluster.local"])
    two.job(MPI, REPORT)
    with listening(two.hosts[1], 22):
        two.start()
        assert two.wait(60) == [0, 0], two.hosts[0].stderr
    assert len(reports(two.hosts)) == 4
