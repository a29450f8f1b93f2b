"""A clone of the project whose row's image is a small one, and the command run in it."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import small_image
from docker.errors import ImageNotFound

from shoal.image.build import tags_of
from shoal.image.names import Names
from shoal.image.versions import Flavour
from shoal.image.versions_file import load

ROOT = Path(__file__).resolve().parents[3]
ROW = "2.13-cpu"
REPOSITORY = "pytorch-training"


@dataclass
class Project:
    """A folder with versions.yaml and what an image is built from. No two have the same content hash."""

    folder: Path
    client: docker.DockerClient
    environment: dict[str, str] = field(default_factory=dict)
    flavour: Flavour = "sagemaker"
    made: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("images", "entrypoint", "smddp_core"):
            ignored = shutil.ignore_patterns("build", "__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, self.folder / name, ignore=ignored)
        for name in (".dockerignore", "versions.yaml"):
            shutil.copy(ROOT / name, self.folder)
        self.change_sources()

    def change_sources(self) -> None:
        """Do what makes another image of the row: its content hash is another from now on."""
        (self.folder / "images" / "scripts" / "new.sh").write_text(f"# {uuid.uuid4()}\n")

    @property
    def names(self) -> Names:
        return tags_of(load(self.folder / "versions.yaml"), ROW, self.folder, self.flavour)

    def tag(self, kind: str) -> str:
        """Return the immutable, the full or the short tag."""
        name = self.names.aliases[0] if kind == "short" else getattr(self.names, kind)
        return str(name).partition(":")[2]

    def make_image(self, *layer_bytes: int) -> str:
        """Have an image under the row's immutable name; return its id."""
        self.made.append(small_image.load(self.client, self.names.immutable, *(layer_bytes or (100_000, 50_000))))
        return self.made[-1]

    def remove_images(self) -> None:
        for image in self.made:
            with contextlib.suppress(ImageNotFound):
                self.client.images.remove(image, force=True)

    def log_in(self, host: str, username: str, password: str) -> None:
        """Do what `docker login` does."""
        login = {"auths": {host: {"auth": base64.b64encode(f"{username}:{password}".encode()).decode()}}}
        (self.folder / "config.json").write_text(json.dumps(login))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("AWS_")},
            "PYTHONPATH": str(ROOT),
            "DOCKER_CONFIG": str(self.folder),
            "NO_PROXY": "127.0.0.1",
            "HOME": str(self.folder),
            **self.environment,
        }
        command = [sys.executable, "-m", "shoal", "push", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def push(self, *arguments: str, row: str = ROW) -> subprocess.CompletedProcess[str]:
        return self.run(row, *arguments)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        stdout, stderr = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def push_json(self, *arguments: str) -> dict[str, Any]:
        done = self.push(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
