"""Real sshd and ssh with the files that a job makes: only the job's key gets in, only the job's host is trusted."""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import missing_tools, until
from shoal_entrypoint import ports, remote, ssh
from shoal_entrypoint.outcome import JobError


def free_port() -> int:
    """A port below those that the kernel hands out by itself: none of them can be taken before sshd has bound it.

    sshd goes on with IPv6 alone when another program has its port in IPv4, and then never answers here.
    """
    for port in random.sample(range(20000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise AssertionError("no free port")


@pytest.fixture
def job() -> Iterator[Path]:
    """An sshd on this machine, as a worker starts it; /run because sshd wants no writable folder above its keys."""
    if missing_tools():
        pytest.skip(f"needs root and {', '.join(missing_tools())}")
    run = Path(f"/run/shoal-test-{os.getpid()}")
    run.mkdir(mode=0o700)
    Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    host_key, user_key = ssh.make_key(run / "host_key"), ssh.make_key(run / "id_ed25519")
    ssh.write_private(run / "authorized_keys", ssh.authorized_keys(user_key, ["127.0.0.1"]))
    ssh.write_private(run / "sshd_config", ssh.server_config(run, port, sys.executable))
    logins = {"127.0.0.1": ssh.Login(host_key, port, ssh.user())}
    ssh.write_private(run / "ssh_config", ssh.client_config(run, logins))
    ssh.write_private(run / "known_hosts", ssh.known_hosts(logins))
    remote.save(run / "environment", {"PATH": os.environ["PATH"], "SM_CURRENT_HOST": "algo-2", "TEXT": "two\nlines"})
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    assert sshd is not None
    with subprocess.Popen([sshd, "-D", "-f", run / "sshd_config", "-E", run / "log"]) as server:
        try:
            with contextlib.suppress(AssertionError):  # what sshd says tells more
                until(lambda: _answers(port) or server.poll() is not None)
            assert _answers(port), (run / "log").read_text()
            yield run
        finally:
            server.terminate()
            server.wait(10)
            shutil.rmtree(run)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def login(run: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(run / "ssh_config"), f"{getpass.getuser()}@127.0.0.1", *command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL)


def test_a_command_runs_in_the_environment_of_its_host(job: Path) -> None:
    done = login(job, ['printf "%s|" "$SM_CURRENT_HOST" "$TEXT"; exit 3'])
    assert (done.returncode, done.stdout) == (3, "algo-2|two\nlines|"), done.stderr


def test_a_host_with_another_key_is_not_trusted(job: Path) -> None:
    other = ssh.make_key(job / "other")
    port = next(line.split()[1] for line in (job / "sshd_config").read_text().splitlines() if line.startswith("Port"))
    login_there = ssh.Login(other, int(port), ssh.user())
    ssh.write_private(job / "known_hosts", ssh.known_hosts({"127.0.0.1": login_there}))
    done = login(job, ["true"])
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_a_host_that_is_not_known_is_not_trusted(job: Path) -> None:
    ssh.write_private(job / "known_hosts", "")
    assert "Host key verification failed" in login(job, ["true"]).stderr


def test_another_key_does_not_get_in(job: Path) -> None:
    ssh.make_key(job / "id_ed25519")
    done = login(job, ["true"])
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_another_address_does_not_get_in(job: Path) -> None:
    """Even with the job's key."""
    text = (job / "authorized_keys").read_text()
    ssh.write_private(job / "authorized_keys", text.replace("127.0.0.1", "10.1.2.3"))
    done = login(job, ["true"])
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_nothing_but_commands(job: Path) -> None:
    """No forwarding, and no shell."""
    target = f"{getpass.getuser()}@127.0.0.1"
    port = next(line.split()[1] for line in (job / "sshd_config").read_text().splitlines() if line.startswith("Port"))
    argv = ["ssh", "-F", str(job / "ssh_config"), "-W", f"127.0.0.1:{port}", target]  # which answers, if it is reached
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (255, "")
    assert "forwarding failed" in done.stderr
    done = login(job, [])
    assert done.returncode == 1
    assert "only commands are run here" in done.stderr


def test_a_held_port_is_sshd_s_and_nobody_else_s() -> None:
    held = ports.for_ssh({"SHOAL_SSH_PORT": str(free_port())})
    try:
        with pytest.raises(OSError, match="in use"), socket.socket() as plain:
            plain.bind(("", held.port))
        refusal = r"SHOAL_SSH_PORT: port \d+ cannot be used on this host: Address already in use\."
        with socket.create_server(("", 0)) as taken, pytest.raises(JobError, match=refusal):
            ports.for_ssh({"SHOAL_SSH_PORT": str(taken.getsockname()[1])})
        with socket.create_server(("", held.port)):  # with SO_REUSEADDR, as sshd
            pass
    finally:
        held.release()


@pytest.mark.parametrize("text", ["0", "65536", "-1", "x", "22 "])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="SHOAL_SSH_PORT: a port from 1 to 65535 was expected"):
        ports.for_ssh({"SHOAL_SSH_PORT": text})


def test_a_port_that_another_program_has_is_named(tmp_path: Path) -> None:
    """sshd's last line would say that all is well: it listens, with IPv6."""
    log = tmp_path / "log"
    log.write_text("Bind to port 22 on 0.0.0.0 failed: Address already in use.\r\nServer listening on :: port 22.\r\n")
    assert ssh.reason_of(log) == "Bind to port 22 on 0.0.0.0 failed: Address already in use"
    assert ssh.reason_of(tmp_path / "none") == "no message"
