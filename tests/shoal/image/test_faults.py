"""What goes wrong while an image is built: one clear line, no tag, and a second run goes on.

The image is of a row of the test's own: a base of one static program (Debian's busybox-static) and one step. The
engine is the test's own as well.
"""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from own_engine import OwnEngine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("dockerd"), reason="only root can start an engine"),
]

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = """
defaults: {openmpi: 4.1.4, mpi4py: 4.1.2, lightning: 2.6.6, flavours: [sagemaker]}
bases:
  debian12: {pull: "registry.invalid/debian:none", suite: bookworm, python: "3.11", openmpi: 4.1.4}
rows:
  tiny: {torch: 2.13.0, device: cpu, python: "3.11", base: debian12, size_mb: 40, ga: 2026-07-20, eop: 2027-07-20}
"""
DOCKERFILE = """\
FROM {{ base_image }} AS sagemaker
RUN --mount=type=bind,source=images/scripts,target=/scripts sh /scripts/step.sh
"""
# What the probe of a good image would say; `python` of the base prints it.
MEASURED = {
    **{"torch": "2.13.0", "device": "cpu", "python": "3.11", "base": "debian12", "lightning": "2.6.6"},
    **{"mpi4py": "4.1.2", "openmpi": "4.1.4", "cuda": None, "smddp": True, "smp": "1.0"},
    **{"packages": {}, "licenses": {}, "debian": {}, "python_full": "3.11.2"},
}


def base_archive() -> bytes:
    """Return a file system of busybox as a tar file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(os.path.realpath("/bin/busybox"), "bin/busybox")
        for name in ("sh", "dd", "sleep", "echo", "cat"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        script = f"#!/bin/sh\necho '{json.dumps(MEASURED)}'\n".encode()
        program = tarfile.TarInfo("bin/python")
        program.size, program.mode = len(script), 0o755
        archive.addfile(program, io.BytesIO(script))
    return stream.getvalue()


class Project:
    """A repository with one row, and the command run in it."""

    def __init__(self, root: Path, links: Path, engine: OwnEngine) -> None:
        self.root, self.links, self.engine = root, links, engine
        for folder in ("images/templates", "images/locks", "images/scripts"):
            (root / folder).mkdir(parents=True)
        (root / "versions.yaml").write_text(VERSIONS)
        (root / ".dockerignore").write_text((ROOT / ".dockerignore").read_text())
        (root / "images/templates/Dockerfile.j2").write_text(DOCKERFILE)
        (root / "images/probe.py").write_text("")
        self.wheel(b"")
        self.step("echo done >/done")

    def step(self, script: str) -> None:
        """Say what the image's one step runs."""
        (self.root / "images/scripts/step.sh").write_text(script + "\n")

    def wheel(self, content: bytes) -> None:
        """Make the wheel that the row is locked to."""
        self.links.mkdir(exist_ok=True)
        path = self.links / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tiny.bin", content)
            archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
            archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr("tiny-1.0.dist-info/RECORD", "")
        self.lock(hashlib.sha256(path.read_bytes()).hexdigest())

    def lock(self, sha256: str) -> None:
        for name in ("tiny.txt", "build-py311.txt", "container-py311.txt"):
            (self.root / "images/locks" / name).write_text(f"tiny==1.0 --hash=sha256:{sha256}\n")

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Start `shoal build tiny`."""
        pip = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.links)}
        variables = {**os.environ, **pip, "DOCKER_HOST": self.engine.address, "PYTHONPATH": str(ROOT), **environment}
        command = [sys.executable, "-m", "shoal", "build", "tiny"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.root, env=variables, stdout=pipe, stderr=pipe, text=True)

    def until_logged(self, word: str, process: subprocess.Popen[str]) -> None:
        """Wait until the build's log has `word`."""
        deadline = time.monotonic() + 60
        while not any(word in path.read_text() for path in (self.root / ".shoal").glob("*-build.log")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"{word} is not in the log"
            time.sleep(0.05)

    def fails(self, process: subprocess.Popen[str] | None = None, **environment: str) -> tuple[int, str]:
        """Return how the command ended and its one line, after seeing to what holds for every fault."""
        process = process or self.start(**environment)
        out, err = process.communicate(timeout=120)
        assert process.returncode != 0, (out, err)
        assert out == ""
        assert "Traceback" not in err, err
        said = [line for line in err.splitlines() if line.startswith("shoal: ")]
        assert len(said) == 1, err
        return process.returncode, said[0]

    def tags(self) -> list[str]:
        """Return the tags of images that the command has given."""
        return [tag for image in self.engine.client.images.list(name="pytorch-training") for tag in image.tags]

    def succeeds(self) -> None:
        """Run the command again: what was wrong has been put right."""
        process = self.start()
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert set(out.split()) == set(self.tags()) != set()


@pytest.fixture
def engine() -> Iterator[OwnEngine]:
    engine = OwnEngine(megabytes=48)
    try:
        engine.client.api.import_image_from_data(base_archive(), repository="shoal-base", tag="debian12")
        yield engine
    finally:
        engine.close()


@pytest.fixture
def project(engine: OwnEngine, tmp_path: Path) -> Project:
    return Project(tmp_path / "project", tmp_path / "links", engine)


def test_the_engine_s_disk_is_full(project: Project) -> None:
    project.step("dd if=/dev/zero of=/large bs=1M count=60")
    (project.root / "versions.yaml").write_text(VERSIONS.replace("size_mb: 40", "size_mb: 90"))
    code, said = project.fails()
    assert code == 1
    assert "No space left on device" in said
    assert project.tags() == []
    project.engine.grow(400)
    project.succeeds()


def test_the_engine_stops_while_it_builds(project: Project) -> None:
    project.step("echo be''gan; sleep 300")
    build = project.start()
    project.until_logged("began", build)
    project.engine.kill()
    code, said = project.fails(build)
    assert code == 3
    assert "the Docker engine ended during the build" in said
    assert "(`make engine`); a second run continues" in said
    project.engine.start()
    assert project.tags() == []
    project.step("echo done >/done")
    project.succeeds()


def test_no_engine_at_all(project: Project) -> None:
    project.engine.kill()
    code, said = project.fails()
    assert code == 3
    assert "no Docker engine answers" in said
    project.engine.start()
    project.succeeds()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_is_interrupted(project: Project, number: signal.Signals) -> None:
    project.step("echo be''gan; sleep 300")
    build = project.start()
    project.until_logged("began", build)
    build.send_signal(number)
    code, said = project.fails(build)
    assert code == 130
    assert said == "shoal: stopped: what was not finished has no tag; a second run continues"
    assert project.tags() == []
    project.step("echo done >/done")
    project.succeeds()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that has room for 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("what", ["wheelhouse", "records"])
def test_this_machine_s_disk_is_full(engine: OwnEngine, small_disk: Path, tmp_path: Path, what: str) -> None:
    project = Project(small_disk / "project", tmp_path / "links", engine)
    if what == "wheelhouse":
        project.wheel(os.urandom(2_000_000))
    else:
        subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/filler"], check=False, stderr=subprocess.DEVNULL)
    code, said = project.fails()
    assert code == 3
    assert "No space left on device" in said
    assert project.tags() == []
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    project.succeeds()


def test_a_wheel_is_not_the_locked_one(project: Project) -> None:
    lock = (project.root / "images/locks/tiny.txt").read_text()
    project.lock("0" * 64)
    code, said = project.fails()
    assert code == 3
    assert "tiny" in said
    assert "hash" in said.lower()
    assert project.tags() == []
    project.lock(lock.strip().rpartition(":")[2])
    project.succeeds()


def test_the_base_cannot_be_had(project: Project, tmp_path: Path) -> None:
    """The registry is gone, and mmdebstrap is not there."""
    project.engine.client.images.remove("shoal-base:debian12")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("docker", "dpkg", "sh"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    code, said = project.fails(PATH=str(programs))
    assert code == 3
    assert "registry.invalid/debian:none cannot be pulled" in said
    assert "install mmdebstrap" in said
    assert project.tags() == []
    project.engine.client.api.import_image_from_data(base_archive(), repository="shoal-base", tag="debian12")
    project.succeeds()
