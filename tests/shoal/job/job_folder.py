"""A folder with a job file in it: run `shoal` on it, read what the run left."""

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker

LOOP = "echo ready; while :; do sleep 0.1; done"
SHOAL = [sys.executable, "-c", "from shoal.cli import main; main()"]


def shoal(*arguments: str, **popen: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run([*SHOAL, *arguments], capture_output=True, text=True, timeout=100, check=False, **popen)


@dataclass
class JobFolder:
    """A folder with a job file, its channel, and whatever runs of it leave."""

    path: Path
    request: dict[str, Any]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def run_folder(self) -> Path:
        return self.path / "runs" / str(self.request["TrainingJobName"])

    @property
    def described(self) -> dict[str, Any]:
        described: dict[str, Any] = json.loads((self.run_folder / "job.json").read_text())
        return described

    def log(self, host: str) -> str:
        file = self.run_folder / "logs" / f"{host}.log"
        return file.read_text() if file.exists() else ""

    def write(self) -> Path:
        file = self.path / "job.json"
        file.write_text(json.dumps(self.request))
        return file

    def shoal(self, verb: str, *options: str, **popen: Any) -> subprocess.CompletedProcess[str]:
        """Run `shoal VERB job.json` to its end."""
        return shoal(verb, str(self.write()), *options, **popen)

    def start(self, *options: str, **popen: Any) -> subprocess.Popen[str]:
        """Start `shoal run job.json`."""
        command = [*SHOAL, "run", str(self.write()), *options]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        process = subprocess.Popen(command, text=True, **streams)
        self.started.append(process)
        return process

    def until_logged(self, text: str, hosts: tuple[str, ...] = ("algo-1", "algo-2")) -> None:
        """Wait until every host has printed something."""
        until(lambda: all(text in self.log(host) for host in hosts), f"{text!r} in the logs of {hosts}")


def script(job: JobFolder, text: str, hosts: int = 2) -> None:
    """Let the job run a script on so many hosts."""
    job.request["Environment"] = {"SCRIPT": text}
    job.request["ResourceConfig"]["InstanceCount"] = hosts


def content(archive: Path) -> dict[str, str]:
    """Return the files of an archive."""
    with tarfile.open(archive) as tar:
        return {m.name: tar.extractfile(m).read().decode() for m in tar if m.isreg()}  # type: ignore[union-attr]


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait for a condition, asking often."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.05)


def things_of(client: docker.DockerClient, job_name: str) -> list[Any]:
    """Return the containers and networks of a job."""
    wanted: dict[str, str | list[str] | bool] = {"label": f"shoal.job={job_name}"}
    return [
        *client.containers.list(all=True, filters=wanted, ignore_removed=True),
        *client.networks.list(filters=wanted),
    ]


def socket_group() -> int | None:
    """Return the group that may talk to the engine's socket, if it is a socket of this machine."""
    path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    return Path(path).stat().st_gid if Path(path).exists() else None
