"""SSH for one job: keys that are made for it and die with it, an sshd that admits only them, a client that trusts
only the job's hosts. Private keys never leave the host that made them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple

from shoal_entrypoint import remote
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.ports import SSH_PORT, Held
from shoal_entrypoint.supervise import Finished, Supervisor

__all__ = [
    "Login",
    "authorized_keys",
    "client_config",
    "known_hosts",
    "make_key",
    "public_key",
    "require",
    "server_config",
    "start_server",
    "user",
    "write_private",
]

_START_SECONDS = 15.0
_PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]{60,100}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\$?")
_ADDRESS = re.compile(r"[0-9A-Fa-f:.]+")
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


class Login(NamedTuple):
    """How the first host logs in at another one: what that one has put into its card."""

    key: str
    port: int
    user: str

    @classmethod
    def from_card(cls, card: Mapping[str, Any], host: str) -> Login:
        """Checked, because it goes into files that ssh parses by line."""
        key, port, name = public_key(card, "ssh_host_key", host), card.get("ssh_port"), card.get("ssh_user")
        if not _HOST.fullmatch(host):
            raise JobError(f"{host!r}: is no host name that ssh can take: letters, digits and . _ : - only")
        if type(port) is not int or not 0 < port < 65536 or not isinstance(name, str) or not _USER.fullmatch(name):
            raise JobError(f"{host}: sent no usable ssh_port and ssh_user")
        return cls(key, port, name)


def user() -> str:
    """The name of the account that this process runs as."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise JobError(
            f"user {os.geteuid()}: has no line in /etc/passwd, without which ssh and sshd do not start. Add one to the"
            " image (useradd), or start the container as a user who has one."
        ) from None


def authorized_keys(leader_key: str, addresses: Iterable[object]) -> str:
    """One key, for commands only, from the first host's addresses if they are known."""
    known = sorted({one for one in addresses if isinstance(one, str) and _ADDRESS.fullmatch(one)})
    origin = f'from="{",".join(known)}",' if known else ""
    return f"{origin}restrict {leader_key}\n"


def server_config(run: Path, port: int, python: str, strict_modes: bool = True) -> str:
    """sshd_config of a worker: one user, one key, no passwords, nothing but commands in the job's environment."""
    command = f"{shlex.quote(python)} -I -S {shlex.quote(remote.__file__)} {shlex.quote(str(run / 'environment'))}"
    lines = [
        f"Port {port}",
        f"HostKey {run}/host_key",
        f"AuthorizedKeysFile {run}/authorized_keys",
        # Off where the keys are below a folder like /tmp; their own folder has been made there, private, by us.
        f"StrictModes {'yes' if strict_modes else 'no'}",
        "PidFile none",
        f"AllowUsers {user()}",
        "AuthenticationMethods publickey",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "HostbasedAuthentication no",
        "PermitRootLogin prohibit-password",
        "PermitUserEnvironment no",
        "PermitUserRC no",
        "PermitTTY no",
        "PermitTunnel no",
        "DisableForwarding yes",
        "UsePAM no",
        "PrintMotd no",
        "LoginGraceTime 30",
        "MaxStartups 100:30:200",
        f"ForceCommand {command}",
    ]
    return "\n".join(lines) + "\n"


def client_config(run: Path, logins: Mapping[str, Login], host_seconds: float = 30.0) -> str:
    """ssh_config of the host that runs mpirun. It gives a host up a little later than the control channel, which can
    say more about it.
    """
    lines = [
        line
        for host, login in logins.items()
        for line in (f"Host {host}", f"  Port {login.port}", f"  User {login.user}")
    ]
    lines += [
        "Host *",
        f"  IdentityFile {run}/id_ed25519",
        "  IdentitiesOnly yes",
        "  PreferredAuthentications publickey",
        "  BatchMode yes",
        "  StrictHostKeyChecking yes",
        f"  UserKnownHostsFile {run}/known_hosts",
        "  GlobalKnownHostsFile /dev/null",
        "  CheckHostIP no",
        "  ConnectTimeout 20",
        f"  ServerAliveInterval {int(host_seconds / 3) + 1}",
        "  ServerAliveCountMax 3",
        "  LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"


def known_hosts(logins: Mapping[str, Login]) -> str:
    """Host name -> public host key, as ssh reads it."""
    names = {host: host if login.port == SSH_PORT else f"[{host}]:{login.port}" for host, login in logins.items()}
    return "".join(f"{names[host]} {login.key}\n" for host, login in logins.items())


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def start_server(
    supervisor: Supervisor, run: Path, held: Held, keys: str, environment: dict[str, str], strict_modes: bool
) -> Finished:
    """Start sshd and return when it answers; `keys` is what authorized_keys() says."""
    sshd = require("sshd", "openssh-server")
    write_private(run / "authorized_keys", keys)
    write_private(run / "sshd_config", server_config(run, held.port, sys.executable, strict_modes))
    remote.save(run / "environment", environment)
    log_file = run / "sshd.log"
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # where it drops its privileges; without it, it says so itself
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
    argv = [sshd, "-D", "-f", str(run / "sshd_config"), "-E", str(log_file)]
    server = supervisor.spawn(argv, "/", {"PATH": _SYSTEM_PATH})
    end = time.monotonic() + _START_SECONDS
    while not _answers(held.port):
        supervisor.wait(lambda: server.returncode is not None, timeout=0.02)
        if server.returncode is not None or time.monotonic() > end:
            raise JobError(f"sshd: did not start on port {held.port}: {reason_of(log_file)}")
    held.release()
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
