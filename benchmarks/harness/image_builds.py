"""Builds of a row's image in a temporary clone of the repository, timed, under names that nobody else uses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.build import UnavailableError

REPOSITORY = "shoal-benchmark"
_LIMIT_SECONDS = 1800
# `shoal`, but its images are called otherwise: a user's own tags must not move to what a benchmark made.
_SHOAL = f"from shoal.image import names; names.REPOSITORY = {REPOSITORY!r}; from shoal.__main__ import main; main()"
# `docker build` with what `shoal build` gives it, and without BuildKit's cache. Wheels and the base are there already.
_COLD = """\
import os, subprocess, sys
from pathlib import Path
from shoal.image import buildkit, host_settings
from shoal.image.versions_file import load
row, tag, root = sys.argv[1], sys.argv[2], Path.cwd()
versions = load(root / "versions.yaml")
with host_settings.secrets(versions.bases[versions.row(row).base].suite) as secrets:
    file = root / "images" / "rendered" / f"{row}.Dockerfile"
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    arguments = ["--no-cache", "--file", str(file), "--tag", tag, "--target", "sagemaker", *secrets, str(root)]
    sys.exit(subprocess.call([buildkit.find_client(), "build", "--progress=plain", *arguments], env=environment))
"""
# One line more in one file. C++ gets code, not a comment: ccache knows that a comment changes nothing.
_CODE = 'namespace {{ [[maybe_unused]] constexpr char benchmark_{0}[] = "{0}"; }}\n'
_CHANGES = {
    "entrypoint": ("entrypoint/src/shoal_entrypoint/main.py", "# {0}\n"),
    "smddp_core": ("smddp_core/src/collective/exchange.cpp", _CODE),
    "smddp_core_all": ("smddp_core/include/smddp/errors.hpp", _CODE),  # nearly every file includes it
}


@dataclass(frozen=True)
class Clone:
    """The repository's last commit in a folder of its own, with the wheels that the repository has fetched."""

    root: Path

    def build(self, row: str) -> tuple[float, dict[str, Any]]:
        """Run `shoal build`; return seconds and the manifest.

        Raises:
            UnavailableError: it failed.
        """
        seconds, output = self._run([sys.executable, "-c", _SHOAL, "build", row, "--json"], f"shoal build {row}")
        manifest: dict[str, Any] = json.loads(output)
        return seconds, manifest

    def cold(self, row: str) -> float:
        """Build every layer anew, from fetched wheels and the base that is there; return seconds.

        Raises:
            UnavailableError: it failed.
        """
        argv = [sys.executable, "-c", _COLD, row, f"{REPOSITORY}:cold"]
        return self._run(argv, f"docker build --no-cache {row}")[0]

    def forget(self, row: str) -> None:
        """Remove the record of the last build, so that the next one asks BuildKit for every layer."""
        (self.root / ".shoal" / f"{row}.json").unlink(missing_ok=True)

    def change(self, part: str) -> None:
        """Add a line that no build has seen to a source file of `part`."""
        name, line = _CHANGES[part]
        with (self.root / name).open("a") as file:
            file.write(line.format(uuid.uuid4().hex))

    def _run(self, argv: list[str], what: str) -> tuple[float, str]:
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        began = time.monotonic()
        try:
            done = subprocess.run(
                argv,
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{what}: not done after {_LIMIT_SECONDS} s") from None
        seconds = time.monotonic() - began
        if done.returncode != 0:
            last = (done.stderr.strip() or "no output").splitlines()[-1]
            raise UnavailableError(f"{what}: {last}")
        return seconds, done.stdout


@contextlib.contextmanager
def clone(repository: Path) -> Iterator[Clone]:
    """Make a clone of `repository`; at the end remove it, and the images that were built in it.

    Raises:
        UnavailableError: it is not a git repository.
    """
    with tempfile.TemporaryDirectory(prefix="images-bench-") as folder:
        root = Path(folder) / "shoal"
        argv = ["git", "clone", "--quiet", "--no-local", "--depth=1", f"file://{repository}", str(root)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnavailableError(f"git clone of {repository}: {done.stderr.strip().splitlines()[-1]}")
        for wheels in (repository / "wheelhouse").iterdir():
            if wheels.is_dir() and not wheels.name.startswith("."):
                shutil.copytree(wheels, root / "wheelhouse" / wheels.name, copy_function=_link)
        try:
            yield Clone(root)
        finally:
            remove_images()


def remove_images() -> None:
    """Remove all images of the benchmark's own name; BuildKit's cache stays."""
    from shoal import engine

    client = engine.connect()
    for image in client.images.list(name=REPOSITORY):
        for tag in image.tags:
            if tag.startswith(f"{REPOSITORY}:"):
                client.images.remove(tag)


def changed_files(repository: Path) -> int:
    """Return how many files of the repository are not as in its last commit, and so are not in what is measured."""
    argv = ["git", "-C", str(repository), "status", "--porcelain"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return len(done.stdout.splitlines())


def _link(source: str, target: str) -> None:
    """Give a wheel a second name, since a row's may be gigabytes; copy what cannot be linked or may be written to."""
    if source.endswith(".whl"):
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)
