"""Hosts for real runs, without a container engine: each has its own network, PID, mount and UTS namespace, and `train`
is PID 1 in it, as in `docker run IMAGE train`. They share one bridge and nothing else that a job uses.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

SOURCE = Path(__file__).parents[2] / "entrypoint" / "src"
SHIM = SOURCE / "shoal_entrypoint" / "_hostname.so"  # compiled by conftest.py, as an installation does
_NUMBERS = itertools.count()
_TOOLS = ("cc", "ip", "unshare", "sshd", "ssh", "ssh-keygen", "mpirun")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_tools() -> list[str]:
    """What this machine lacks for real hosts."""
    lacking = [] if os.getuid() == 0 else ["root's rights"]
    return lacking + [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Host:
    """One host of a cluster."""

    def __init__(self, name: str, folder: Path, namespace: str) -> None:
        self.name = self.hostname = name
        self.folder = folder
        self.namespace = namespace
        self.ml = folder / "ml"
        self.code = self.ml / "code"
        self.tools = folder / "tools"
        self.process: subprocess.Popen[bytes] | None = None
        for each in (self.ml / "input" / "config", self.code, self.tools):
            each.mkdir(parents=True)

    def start(self, env: Mapping[str, str], mounts: str = "", arguments: str = "", run_as: str = "") -> None:
        script = f"""set -e
            mount --bind {self.ml} /opt/ml
            mount --bind {self.folder.parent}/hosts /etc/hosts
            mount -t tmpfs -o mode=0755 tmpfs /run
            hostname {self.hostname}
            {mounts}
            cd /
            exec {run_as} env -i "$@" train {arguments}"""
        # Not this interpreter's folder: whatever else is installed there is no part of a test.
        path = f"{self.tools}:{self.folder.parent}/bin:{_PATH}"
        values = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", **env}
        argv = [
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "-m",
            "-u",
            "-p",
            "-f",
            "--mount-proc",
            "--kill-child",
        ]
        argv += ["sh", "-c", script, "sh", *(f"{name}={value}" for name, value in values.items())]
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("wb") as err:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    @property
    def train(self) -> int:
        """The id, on this machine, of the host's PID 1."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def start_unprivileged(self, env: Mapping[str, str], passwd: str | None = None) -> None:
        """As user 1000, who has no home and may write nothing but /opt/ml and temporary files."""
        (self.folder / "passwd").write_text(
            "root:x:0:0::/root:/bin/sh\nsomebody:x:1000:1000::/nonexistent:/bin/sh\n" if passwd is None else passwd
        )
        for path in (self.ml, *self.ml.rglob("*")):
            os.chown(path, 1000, 1000)
        mounts = _opened(Path(sys.base_prefix), Path(sys.prefix), SOURCE, self.folder.parent)
        mounts += f"mount --bind {self.folder}/passwd /etc/passwd\n"
        run_as = "setpriv --reuid 1000 --regid 1000 --clear-groups"
        self.start({"HOME": "/nonexistent", **env}, mounts, run_as=run_as)

    def signal(self, signum: int) -> None:
        os.kill(self.train, signum)

    def wait(self, timeout: float = 30.0) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    @property
    def failed(self) -> bool:
        return (self.ml / "output" / "failure").exists()

    @property
    def failure(self) -> str:
        """The text of the failure file, which must be there."""
        return (self.ml / "output" / "failure").read_text()

    @property
    def succeeded(self) -> bool:
        return (self.ml / "output" / "success").exists()

    def processes(self) -> list[str]:
        """Every process that is alive in the host's network namespace."""
        return subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False
        ).stdout.split()

    def runs(self, word: str) -> bool:
        """Whether a process with this word on its command line is alive in the host."""
        for pid in self.processes():
            try:
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return True
            except OSError:
                continue
        return False


def _opened(*folders: Path) -> str:
    """Commands for a shell: show these folders to everybody, and nothing else of those above them that are root's."""
    closed = {above for each in folders for above in each.parents if not above.stat().st_mode & 0o001}
    tops = sorted(str(one) for one in closed if not closed.intersection(one.parents))
    lines = ["mkdir -p /run/stage"]
    for number, each in enumerate(folders):
        lines += [f"mkdir /run/stage/{number}", f"mount --bind {each} /run/stage/{number}"]
    lines += [f"mount -t tmpfs -o mode=0755 tmpfs {top}" for top in tops]
    for number, each in enumerate(folders):
        lines += [f"mkdir -p {each}", f"mount --bind /run/stage/{number} {each}"]
    return "\n".join(lines) + "\n"


class Cluster:
    """Hosts algo-1 .. algo-n on one bridge."""

    def __init__(self, folder: Path, count: int, names: list[str] | None = None) -> None:
        number = f"{os.getpid()}-{next(_NUMBERS)}"
        self.folder = folder
        self.names = names or [f"algo-{index + 1}" for index in range(count)]
        folder.mkdir()
        (folder / "bin").mkdir()
        Path("/opt/ml").mkdir(exist_ok=True)  # only a mount point
        train = folder / "bin" / "train"
        train.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(SOURCE)!r})\n"
            "from shoal_entrypoint.main import main\nsys.exit(main())\n"
        )
        train.chmod(0o755)
        self._hub = f"shoal-{number}-hub"
        self._made = [self._hub]
        ip("netns", "add", self._hub)
        ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._hub, "link", "set", "bridge", "up")
        self.hosts = [self._host(name, index, number) for index, name in enumerate(self.names)]
        lines = ["127.0.0.1 localhost", *(f"10.99.0.{index + 1} {name}" for index, name in enumerate(self.names))]
        (folder / "hosts").write_text("\n".join(lines) + "\n")

    def _host(self, name: str, index: int, number: str) -> Host:
        namespace = f"shoal-{number}-{index}"
        self._made.append(namespace)
        ip("netns", "add", namespace)
        ip(
            "link",
            "add",
            "eth0",
            "netns",
            namespace,
            "type",
            "veth",
            "peer",
            "name",
            f"port{index}",
            "netns",
            self._hub,
        )
        ip("-n", self._hub, "link", "set", f"port{index}", "master", "bridge", "up")
        ip("-n", namespace, "addr", "add", f"10.99.0.{index + 1}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")
        ip("-n", namespace, "link", "set", "lo", "up")
        return Host(name, self.folder / name, namespace)

    def job(
        self,
        hyperparameters: Mapping[str, str],
        script: str | None = None,
        files: Mapping[str, str] | None = None,
        resource: Mapping[str, object] | None = None,
        inputs: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Write the same job into every host."""
        for host in self.hosts:
            config = host.ml / "input" / "config"
            described: dict[str, object] = {"hosts": self.names, "network_interface_name": "eth0", **(resource or {})}
            described["current_host"] = host.name
            values = {"sagemaker_program": "train.py", **hyperparameters}
            (config / "hyperparameters.json").write_text(json.dumps(values))
            (config / "resourceconfig.json").write_text(json.dumps(described))
            (config / "inputdataconfig.json").write_text(json.dumps(inputs or {}))
            for name, text in {**({"train.py": script} if script else {}), **(files or {})}.items():
                (host.code / name).parent.mkdir(parents=True, exist_ok=True)
                (host.code / name).write_text(text)

    def start(self, env: Mapping[str, str] | None = None, arguments: str = "") -> None:
        for host in self.hosts:
            host.start(env or {}, arguments=arguments)

    def wait(self, timeout: float = 30.0) -> list[int]:
        """Exit codes of all hosts."""
        end = time.monotonic() + timeout
        return [host.wait(max(0.1, end - time.monotonic())) for host in self.hosts]

    def close(self) -> None:
        for host in self.hosts:
            if host.process and host.process.poll() is None:
                host.process.send_signal(signal.SIGKILL)  # unshare --kill-child takes the host with it
                host.process.wait(10)
        for namespace in self._made:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


class MakeCluster(Protocol):
    """The `cluster` fixture."""

    def __call__(self, count: int = 2, names: list[str] | None = None) -> Cluster: ...


def until(condition: Callable[[], bool], timeout: float = 15.0) -> None:
    """Wait for something that a host does, looking often."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"did not happen within {timeout} s")
        time.sleep(0.02)
