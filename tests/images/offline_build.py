"""`make test-offline`: a row is built from its bundle where there is no network, on an engine that holds nothing.

Not collected by a plain `pytest`: a build from nothing takes minutes. Needs root: the engine and the build each run in
a network namespace of their own, whose only interface is a loopback that is down.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException

ROOT = Path(__file__).resolve().parents[2]
ROW = os.environ.get("ROW", "2.13-cpu")
# A proxy where nobody listens: whoever asks for anything fails.
NOBODY = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "a.tar"
    subprocess.run([sys.executable, "-m", "shoal", "bundle", ROW, "--output", str(path)], check=True, cwd=ROOT)
    return path


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of this repository without anything that was built or fetched."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an engine without a network and without an image; yield its address."""
    folder = tmp_path_factory.mktemp("engine")
    address = f"unix://{folder}/docker.sock"
    command = ["unshare", "--net", "dockerd", f"--data-root={folder}/data", f"--exec-root={folder}/exec"]
    command += [f"--pidfile={folder}/pid", f"--host={address}", "--bridge=none", "--iptables=false"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **NOBODY})
    try:
        yield address
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder / "data")  # gigabytes, and pytest keeps its folders


@pytest.fixture(scope="module")
def engine(socket: str) -> docker.DockerClient:
    deadline = time.monotonic() + 60
    while True:
        try:
            return docker.DockerClient(base_url=socket)
        except DockerException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@pytest.fixture(scope="module")
def built(engine: docker.DockerClient, socket: str, clone: Path, bundle: Path) -> dict[str, Any]:
    """Build the row; return its manifest."""
    assert engine.images.list() == []
    command = ["unshare", "--net", sys.executable, "-m", "shoal", "build", ROW, "--offline", "--bundle", str(bundle)]
    environ = {**os.environ, **NOBODY, "DOCKER_HOST": socket, "PYTHONPATH": str(clone)}
    done = subprocess.run([*command, "--json"], check=False, cwd=clone, env=environ, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    manifest: dict[str, Any] = json.loads(done.stdout)
    return manifest


def test_it_holds_what_a_build_with_the_network_holds(built: dict[str, Any]) -> None:
    """Every version, every Python and every Debian package."""
    online = subprocess.run(
        [sys.executable, "-m", "shoal", "build", ROW, "--json"], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    expected = json.loads(online.stdout)
    assert built["fresh"]
    assert built["measured"] == expected["measured"]
    assert built["names"] == expected["names"]


def test_nothing_of_the_bundle_stays_beside_the_clone(built: dict[str, Any], clone: Path) -> None:
    assert not list(clone.glob("wheelhouse/*-debs"))
    assert not list(clone.glob(".shoal/bundle-*"))


def test_a_changed_package_is_refused_by_apt_itself(
    built: dict[str, Any], engine: docker.DockerClient, bundle: Path, tmp_path: Path
) -> None:
    """Whoever alters a package and the manifest too still has Debian's signature against them."""
    with tarfile.open(bundle) as archive:
        archive.extractall(tmp_path)
    deb = next((tmp_path / "debs").rglob("ca-certificates_*.deb"))
    content = bytearray(deb.read_bytes())
    content[-1] ^= 1
    deb.write_bytes(content)
    base = json.loads((tmp_path / "manifest.json").read_text())["base_image"]
    volumes = {
        str(tmp_path / "debs"): {"bind": "/build/debs", "mode": "ro"},
        str(ROOT / "images" / "scripts"): {"bind": "/build/scripts", "mode": "ro"},
    }
    container = engine.containers.run(
        base, ["/build/scripts/apt-install.sh", "ca-certificates"], volumes=volumes, network_mode="none", detach=True
    )
    try:
        assert container.wait()["StatusCode"] != 0
        assert b"Hash Sum mismatch" in container.logs() or b"does not match" in container.logs()
    finally:
        container.remove(force=True)
