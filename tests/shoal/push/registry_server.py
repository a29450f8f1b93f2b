"""Debian's docker-registry as a real process on loopback: it can be killed, started again, and given a small disk."""

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import requests
import yaml

_ACCESS = re.compile(r'"(?P<method>[A-Z]+) (?P<path>/v2/\S*) HTTP/1\.1" (?P<status>\d{3})')


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class RegistryServer:
    folder: Path
    users: dict[str, str] = field(default_factory=dict)
    auth: dict[str, object] = field(default_factory=dict)
    disk_mb: int | None = None  # a file system of its own, of this size
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        settings: dict[str, object] = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "data")}},
            "http": {"addr": self.host},
        }
        if self.auth:
            settings["auth"] = self.auth
        if self.users:
            self.let_in(self.users)
            settings["auth"] = {"htpasswd": {"realm": "test", "path": str(self.folder / "htpasswd")}}
        (self.folder / "config.yml").write_text(yaml.safe_dump(settings))
        serve = f"exec docker-registry serve {self.folder}/config.yml"
        command = ["sh", "-c", serve]
        if self.disk_mb is not None:
            mount = f"mount -t tmpfs -o size={self.disk_mb}m none {self.folder}/data"
            command = ["unshare", "--mount", "--map-root-user", "sh", "-c", f"{mount} && {serve}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait()

    def let_in(self, users: dict[str, str]) -> None:
        """Say whose passwords are right from now on; the registry reads the file again when it changes."""
        htpasswd = shutil.which("htpasswd")
        assert htpasswd is not None, "apache2-utils is not installed"
        made = [subprocess.check_output([htpasswd, "-nbB", *pair], text=True).strip() for pair in users.items()]
        (self.folder / "htpasswd").write_text("\n".join(made) + "\n")

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def asked(self) -> list[tuple[str, str, int]]:
        """Return what the registry was asked so far: method, path, status."""
        found = _ACCESS.finditer((self.folder / "log").read_text())
        return [(one["method"], one["path"], int(one["status"])) for one in found]

    def blobs_received(self) -> list[str]:
        """Return the digests of the blobs that were sent to the end, in order."""
        ends = [path for method, path, status in self.asked() if method == "PUT" and status == 201]
        return [path.rpartition("digest=")[2].replace("%3A", ":") for path in ends if "/blobs/uploads/" in path]

    def blobs_confirmed(self) -> int:
        """Return how many blobs the engine has asked about after it had sent them: that is how it ends an upload."""
        received = self.blobs_received()
        heads = {path.rpartition("/")[2] for method, path, status in self.asked() if (method, status) == ("HEAD", 200)}
        return len(heads.intersection(received))

    def bytes_of_uploads(self) -> int:
        """Return how much of blobs that are not there yet has arrived."""
        sizes = 0
        for part in self.folder.glob("data/docker/registry/v2/repositories/**/_uploads/*/data"):
            with contextlib.suppress(FileNotFoundError):
                sizes += part.stat().st_size
        return sizes

    def manifest(self, repository: str, tag: str) -> requests.Response:
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        auth = next(iter(self.users.items()), None)
        url = f"http://{self.host}/v2/{repository}/manifests/{tag}"
        return requests.get(url, headers={"Accept": kind}, auth=auth, timeout=10)

    def _wait(self) -> None:
        while True:
            assert self.process is not None
            assert self.process.poll() is None, (self.folder / "log").read_text()
            try:
                requests.get(f"http://{self.host}/v2/", timeout=10)
            except requests.ConnectionError:
                time.sleep(0.02)
            else:
                return
