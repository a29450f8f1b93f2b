"""A real Slurm of two nodes on this machine: each daemon has its own network, PID, mount and UTS namespace, as a host.

The nodes share the file system, as a cluster's do. Commands (sbatch, ...) run in the controller's network.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_TOOLS = ("ip", "unshare", "slurmctld", "slurmd", "sbatch")
_COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "sinfo")
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SOURCE = Path(__file__).parents[3] / "entrypoint" / "src"
NODES = ("n1", "n2")
CONTROLLER = "ctl"


def missing_tools() -> list[str]:
    """What this machine lacks for a real Slurm."""
    lacking = [] if os.getuid() == 0 else ["root's rights"]
    return lacking + [tool for tool in _TOOLS if shutil.which(tool, path=_SYSTEM) is None]


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class SlurmCluster:
    """`bin` holds the commands, and `train` from this checkout: to be put on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self._prefix = f"slurm-{os.getpid()}"
        self._namespaces: list[str] = []
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.bin.mkdir(parents=True)
        for name in ("state", *NODES):
            (folder / name).mkdir()
        self._conf().write_text(_configuration(folder))
        # Named, or the daemon looks for it, and `ip netns exec` hides it. Nothing here is put into a cgroup.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        names = [CONTROLLER, *NODES]
        hosts = ["127.0.0.1 localhost", *(f"10.97.0.{i + 1} {name}" for i, name in enumerate(names))]
        (folder / "hosts").write_text("\n".join(hosts) + "\n")
        try:
            self._start(names)
        except BaseException:
            self.close()
            raise

    def _conf(self) -> Path:
        return self.folder / "slurm.conf"

    def _start(self, names: list[str]) -> None:
        for index, name in enumerate(names):
            self._network(name, index)
        for command in _COMMANDS:
            real = shutil.which(command, path=_SYSTEM)
            inside = f"ip netns exec {self._prefix}-{CONTROLLER} env SLURM_CONF={self._conf()}"
            self._program(command, f'exec {inside} {real} "$@"')
        self._program("train", f'PYTHONPATH={_SOURCE} exec {sys.executable} -m shoal_entrypoint "$@"')
        self._daemon(CONTROLLER, f"slurmctld -D -i -f {self._conf()}")
        for node in NODES:
            self._daemon(node, f"slurmd -D -f {self._conf()} -N {node}")
        until(lambda: self._idle() == len(NODES), "both nodes idle", 60)

    def _idle(self) -> int:
        done = subprocess.run(
            [self.bin / "sinfo", "--noheader", "--Node", "--format=%T"], capture_output=True, text=True, check=False
        )
        return done.stdout.split().count("idle")

    def _network(self, name: str, index: int) -> None:
        namespace, hub = f"{self._prefix}-{name}", f"{self._prefix}-{CONTROLLER}"
        _run("ip", "netns", "add", namespace)
        self._namespaces.append(namespace)
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        device = "bridge"
        if name == CONTROLLER:
            _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        else:
            device, peer = "eth0", ("peer", "name", f"port{index}", "netns", hub)
            _run("ip", "link", "add", "eth0", "netns", namespace, "type", "veth", *peer)
            _run("ip", "-n", hub, "link", "set", f"port{index}", "master", "bridge", "up")
        _run("ip", "-n", namespace, "addr", "add", f"10.97.0.{index + 1}/24", "dev", device)
        _run("ip", "-n", namespace, "link", "set", device, "up")

    def _program(self, name: str, line: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\nPATH=$PATH:{_SYSTEM}\n{line}\n")
        (self.bin / name).chmod(0o755)

    def _daemon(self, name: str, command: str) -> None:
        script = f"mount --bind {self.folder}/hosts /etc/hosts && hostname {name} && exec {command}"
        argv = ["ip", "netns", "exec", f"{self._prefix}-{name}", "unshare", "-m", "-u", "-p", "-f", "--mount-proc"]
        with (self.folder / f"{name}.out").open("wb") as out:
            self._daemons.append(
                subprocess.Popen(
                    [*argv, "--kill-child", "sh", "-c", script],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env={"PATH": _SYSTEM},
                )
            )

    def close(self) -> None:
        """Kill everything; a daemon's PID namespace takes its jobs along."""
        for daemon in self._daemons:
            daemon.send_signal(signal.SIGKILL)
            daemon.wait(10)
        for namespace in reversed(self._namespaces):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.1)


def _configuration(folder: Path) -> str:
    nodes = [f"NodeName={node} NodeHostname={node} NodeAddr=10.97.0.{i + 2} CPUs=1" for i, node in enumerate(NODES)]
    return (
        "\n".join(
            [
                "ClusterName=shoal",
                f"SlurmctldHost={CONTROLLER}(10.97.0.1)",
                "SlurmUser=root",
                "SlurmdUser=root",
                "AuthType=auth/none",
                "CredType=cred/none",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "SelectType=select/linear",
                "SchedulerType=sched/builtin",
                "SlurmdParameters=config_overrides",
                "ReturnToService=2",
                "KillWait=5",
                f"StateSaveLocation={folder}/state",
                f"SlurmdSpoolDir={folder}/%n",
                f"SlurmctldPidFile={folder}/ctl.pid",
                f"SlurmdPidFile={folder}/%n.pid",
                f"SlurmctldLogFile={folder}/ctl.log",
                f"SlurmdLogFile={folder}/%n.log",
                *nodes,
                f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP",
            ]
        )
        + "\n"
    )
