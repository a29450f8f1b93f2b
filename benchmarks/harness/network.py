"""Hosts on one machine: each has its own network, UTS, IPC and mount namespaces and its own /dev/shm.

A host is a sleeping process that holds the namespaces; they have no names, so nothing is left when the process ends,
and it ends with the driver however that ends (parent-death signal). The hosts' links meet at a bridge in a namespace of
its own, so that the machine's firewall and Docker are not involved.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.layout import Layout

# tbf with 64 kB of burst breaks full-duplex TCP (segmentation-offload super-packets and their acknowledgements).
_BURST = "256kb"
_LATENCY = "25ms"
# Not the machine's own choice, which may be BBR: that one paces, and a namespace may not have it.
_CONGESTION_CONTROLS = ("cubic", "reno")


class NetworkError(RuntimeError):
    """The hosts could not be made."""


@dataclass(frozen=True)
class Host:
    """One host; `pid` is 0 for the machine itself."""

    pid: int
    address: str

    @property
    def enter(self) -> list[str]:
        """What to put in front of a command so that it runs in the host."""
        if self.pid == 0:
            return []
        return ["nsenter", f"--target={self.pid}", "--net", "--uts", "--ipc", "--mount", "--"]


@dataclass(frozen=True)
class Network:
    """The hosts of a layout, and how a launcher of MPI reaches them."""

    hosts: list[Host]
    remote_shell: Path | None
    congestion_control: str


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NetworkError(f"{command[0]} is not installed (Debian: apt-get install iproute2 util-linux)") from None
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _in(pid: int, *command: str) -> str:
    return _run("nsenter", f"--target={pid}", "--net", "--", *command)


def _hold(script: str, flags: list[str]) -> subprocess.Popen[bytes]:
    """A process that makes namespaces, prepares them with `script`, says so, and sleeps until it is killed."""
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", *flags]
    command += ["sh", "-c", f"set -e; {script}; echo ready; exec sleep infinity"]
    # In a session of its own: Ctrl-C must not take the hosts from under the ranks, whose launchers could then not tell
    # their daemons to end.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        process.kill()
        process.wait()
        raise NetworkError("a host's namespaces could not be made: is this a container without the right to?")
    return process


def _connect(hub: int, pid: int, index: int) -> None:
    _run("ip", "link", "add", "eth0", "netns", str(pid), "type", "veth", "peer", f"port{index}", "netns", str(hub))
    _in(hub, "ip", "link", "set", f"port{index}", "master", "bridge", "up")
    _in(pid, "ip", "addr", "add", f"10.77.0.{10 + index}/24", "dev", "eth0")
    _in(pid, "ip", "link", "set", "eth0", "up")
    _in(pid, "ip", "link", "set", "lo", "up")


def _set_congestion_control(pid: int) -> str:
    setting = "/proc/sys/net/ipv4/tcp_congestion_control"
    for name in _CONGESTION_CONTROLS:
        with contextlib.suppress(NetworkError):
            _in(pid, "sh", "-c", f"echo {name} >{setting}")
            return name
    return _in(pid, "cat", setting).strip()


def _write_remote_shell(file: Path, hosts: list[Host]) -> None:
    """What MPI launchers take for ssh: ``FILE [-options] ADDRESS WORD...`` runs the words in the host."""
    cases = "\n".join(f'  {host.address}) exec {" ".join(host.enter)} sh -c "$*" ;;' for host in hosts)
    file.write_text(
        "#!/bin/sh\n"
        "while :; do case $1 in -*) shift ;; *) break ;; esac; done\n"
        f'address=$1; shift\ncase $address in\n{cases}\nesac\necho "no host $address" >&2; exit 1\n'
    )
    file.chmod(0o755)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        if process.stdout:
            process.stdout.close()


@contextlib.contextmanager
def network(layout: Layout, folder: Path) -> Iterator[Network]:
    """The hosts of `layout`, for as long as the context lasts; `folder` takes the remote shell.

    Raises:
        NetworkError: not root, or the kernel refuses.
    """
    if layout.hosts == 1:
        yield Network([Host(0, "127.0.0.1")], None, "")
        return
    if os.geteuid() != 0:
        raise NetworkError(
            f"layout {layout.name} starts hosts in network namespaces, which only root may make: "
            "run this as root, or choose --layout 1x2,1x4"
        )
    held: list[subprocess.Popen[bytes]] = []
    try:
        held.append(_hold("ip link add bridge type bridge && ip link set bridge up", ["--net"]))
        hub = held[0].pid
        hosts = []
        control = ""
        for index in range(layout.hosts):
            script = f"mount -t tmpfs -o mode=1777 tmpfs /dev/shm && hostname bench{index}"
            held.append(_hold(script, ["--net", "--uts", "--ipc", "--mount"]))
            pid = held[-1].pid
            _connect(hub, pid, index)
            control = _set_congestion_control(pid)
            if layout.shaped:
                shape = ["root", "tbf", "rate", layout.link, "burst", _BURST, "latency", _LATENCY]
                _in(pid, "tc", "qdisc", "add", "dev", "eth0", *shape)
            hosts.append(Host(pid, f"10.77.0.{10 + index}"))
        shell = folder / "remote-shell"
        _write_remote_shell(shell, hosts)
        _await_link(hosts)
        yield Network(hosts, shell, control)
    finally:
        _end(held)


def _await_link(hosts: list[Host]) -> None:
    """A bridge's port forwards a moment after it came up."""
    end = time.monotonic() + 10
    for host in hosts[1:]:
        while True:
            try:
                probe = "import socket,sys; socket.create_connection((sys.argv[1], 9), 1)"
                _in(hosts[0].pid, sys.executable, "-c", probe, host.address)
            except NetworkError as error:
                if "refused" in str(error):
                    break  # Nobody listens, but an answer came.
                if time.monotonic() > end:
                    raise NetworkError(f"{host.address} does not answer within 10 s: {error}") from None
