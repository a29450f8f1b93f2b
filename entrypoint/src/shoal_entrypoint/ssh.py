"""SSH for one job: keys that are made for it and die with it, an sshd that admits only them, a client that trusts
only the job's hosts. Private keys never leave the host that made them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Mapping

from shoal_entrypoint import remote
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.supervise import Finished, Supervisor

__all__ = ["DEFAULT_PORT", "client_config", "known_hosts", "make_key", "require", "server_config", "start_server"]

DEFAULT_PORT = 22
_START_SECONDS = 15.0
_PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]{60,100}")
# Not always on PATH of an unprivileged or minimal environment.
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def require(tool: str, package: str) -> str:
    """The absolute path of a tool, or an error that says what to install."""
    path = shutil.which(tool, path=os.environ.get("PATH", "") + ":" + _SYSTEM_PATH)
    if path is None:
        raise JobError(f"{tool}: not found on PATH. A job with MPI needs it: install {package}.")
    return path


def make_key(path: Path) -> str:
    """Make an ed25519 key pair and return the public key."""
    for old in (path, path.with_suffix(".pub")):
        if old.exists():
            old.unlink()  # from an earlier run in the same container
    argv = [require("ssh-keygen", "openssh-client"), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise JobError(f"ssh-keygen: {done.stdout.decode('utf-8', 'replace').strip()}")
    return path.with_suffix(".pub").read_text().strip()


def public_key(card: Mapping[str, object], name: str, host: str) -> str:
    """A public key from another host's card. It goes into files that ssh parses by line, so its form is checked."""
    key = card.get(name)
    if not isinstance(key, str) or not _PUBLIC_KEY.fullmatch(key):
        raise JobError(f"{host}: sent no usable {name}")
    return key


def server_config(run: Path, port: int, python: str) -> str:
    """sshd_config of a worker: one key, no passwords, nothing but commands in the job's environment."""
    command = f"{shlex.quote(python)} -I -S {shlex.quote(remote.__file__)} {shlex.quote(str(run / 'environment'))}"
    lines = [
        f"Port {port}",
        f"HostKey {run}/host_key",
        f"AuthorizedKeysFile {run}/authorized_keys",
        f"PidFile {run}/sshd.pid",
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "PermitUserEnvironment no",
        "AllowTcpForwarding no",
        "X11Forwarding no",
        "UsePAM no",
        "PrintMotd no",
        "MaxStartups 100:30:200",
        f"ForceCommand {command}",
    ]
    return "\n".join(lines) + "\n"


def client_config(run: Path, port: int) -> str:
    """ssh_config of the host that runs mpirun."""
    lines = [
        "Host *",
        f"  Port {port}",
        f"  IdentityFile {run}/id_ed25519",
        "  IdentitiesOnly yes",
        "  BatchMode yes",
        "  StrictHostKeyChecking yes",
        f"  UserKnownHostsFile {run}/known_hosts",
        "  GlobalKnownHostsFile /dev/null",
        "  CheckHostIP no",
        "  ConnectTimeout 20",
        "  ServerAliveInterval 5",
        "  ServerAliveCountMax 3",
        "  LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"


def known_hosts(keys: Mapping[str, str], port: int) -> str:
    """Host name -> public host key, as ssh reads it."""
    names = {host: host if port == DEFAULT_PORT else f"[{host}]:{port}" for host in keys}
    return "".join(f"{names[host]} {key}\n" for host, key in keys.items())


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def start_server(
    supervisor: Supervisor, run: Path, port: int, leader_key: str, environment: dict[str, str]
) -> Finished:
    """Start sshd and return when it answers."""
    sshd = require("sshd", "openssh-server")
    write_private(run / "authorized_keys", f"restrict {leader_key}\n")
    write_private(run / "sshd_config", server_config(run, port, sys.executable))
    remote.save(run / "environment", environment)
    log_file = run / "sshd.log"
    Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)  # where it drops its privileges
    argv = [sshd, "-D", "-f", str(run / "sshd_config"), "-E", str(log_file)]
    server = supervisor.spawn(argv, "/", {"PATH": _SYSTEM_PATH})
    end = time.monotonic() + _START_SECONDS
    while not _answers(port):
        supervisor.wait(lambda: server.returncode is not None, timeout=0.02)
        if server.returncode is not None or time.monotonic() > end:
            raise JobError(
                f"sshd: did not start: {reason_of(log_file)}. SHOAL_SSH_PORT sets another port than {port}, "
                "the same on every host."
            )
    return server


def reason_of(log_file: Path) -> str:
    """What failed, by sshd's log; not always its last line: with its port taken in IPv4, sshd goes on with IPv6."""
    said = log_file.read_text(errors="replace").strip().splitlines() if log_file.exists() else []
    failed = [line for line in said if "failed" in line]
    return (failed or said or ["no message"])[-1].rstrip(".")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
