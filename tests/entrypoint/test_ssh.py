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
from shoal_entrypoint import remote, ssh


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
    ssh.write_private(run / "authorized_keys", f"restrict {user_key}\n")
    ssh.write_private(run / "sshd_config", ssh.server_config(run, port, sys.executable))
    ssh.write_private(run / "ssh_config", ssh.client_config(run, port))
    ssh.write_private(run / "known_hosts", ssh.known_hosts({"127.0.0.1": host_key}, port))
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
    ssh.write_private(job / "known_hosts", ssh.known_hosts({"127.0.0.1": other}, int(port)))
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


def test_a_port_that_another_program_has_is_named(tmp_path: Path) -> None:
    """sshd's last line would say that all is well: it listens, with IPv6."""
    log = tmp_path / "log"
    log.write_text("Bind to port 22 on 0.0.0.0 failed: Address already in use.\r\nServer listening on :: port 22.\r\n")
    assert ssh.reason_of(log) == "Bind to port 22 on 0.0.0.0 failed: Address already in use"
    assert ssh.reason_of(tmp_path / "none") == "no message"
