"""An engine of a test's own: it may be stopped, and its disk be full, without harm to the one that others use."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import docker
import requests

LIMIT_SECONDS = 60.0


class OwnEngine:
    """A dockerd with its data on a file system of `megabytes` in memory."""

    def __init__(self, megabytes: int) -> None:
        # A bridge of its own: an engine that is started without one takes `docker0` away from the machine's engine.
        self._bridge = f"t{uuid.uuid4().hex[:8]}"
        # Not pytest's folder: its paths are too long for the addresses of sockets.
        self._folder = Path(tempfile.mkdtemp(prefix="shoal-"))
        self._data = self._folder / "data"
        self._data.mkdir()
        self.address = f"unix://{self._folder}/sock"
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", self._data], check=True)
        subprocess.run(["ip", "link", "add", self._bridge, "type", "bridge"], check=True)
        subprocess.run(["ip", "address", "add", "169.254.253.1/30", "dev", self._bridge], check=True)
        try:
            self.start()
        except AssertionError:
            self.close()
            raise

    def start(self) -> None:
        """Start it and wait until it answers."""
        (self._folder / "dockerd.pid").unlink(missing_ok=True)
        command: list[str | Path] = ["dockerd", "--host", self.address, "--bridge", self._bridge]
        command += [
            "--data-root",
            self._data,
            "--exec-root",
            self._folder / "exec",
            "--pidfile",
            self._folder / "dockerd.pid",
        ]
        command += ["--iptables=false", "--ip-forward=false", "--ip-masq=false", "--userland-proxy=false"]
        with (self._folder / "dockerd.log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            try:
                self.client = docker.DockerClient(self.address)
                self.client.ping()
            except (docker.errors.DockerException, requests.ConnectionError):
                assert self._process.poll() is None, (self._folder / "dockerd.log").read_text()
                assert time.monotonic() < deadline, "the engine does not answer"
                time.sleep(0.1)
            else:
                return

    def kill(self) -> None:
        """Let it end as in a crash, its containerd with it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # dockerd starts its containerd in a session of its own.
        file = self._folder / "exec" / "containerd" / "containerd.pid"
        with contextlib.suppress(OSError):  # it may have ended by itself
            number = int(file.read_text())
            if Path(f"/proc/{number}/exe").resolve().name == "containerd":
                os.kill(number, signal.SIGKILL)
        file.unlink(missing_ok=True)

    def grow(self, megabytes: int) -> None:
        """Give its disk more room."""
        subprocess.run(["mount", "-o", f"remount,size={megabytes}m", self._data], check=True)

    def close(self) -> None:
        """Stop it and take everything away."""
        self._process.terminate()
        try:
            self._process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):  # also what a killed engine left mounted
            if (place := line.split()[1]).startswith(f"{self._folder}/"):
                subprocess.run(["umount", "--lazy", place], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "delete", self._bridge], check=True)
        shutil.rmtree(self._folder, ignore_errors=True)
