"""`make test-reproducible`: two builds of a row from one bundle, by a builder that can fix all dates, have one digest.

Not collected by a plain `pytest`: two builds from nothing take ten minutes and more. Needs root and buildah (1.28 of
Debian 12 and later). Neither build has a network, a cache or a layer of the other.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.image import render
from shoal.image.bundle import bundle, dockerfile, offline
from shoal.image.versions_file import load

ROOT = Path(__file__).resolve().parents[2]
ROW = os.environ.get("ROW", "2.13-cpu")
# The date that the build's own scripts give what they write: compiled Python files name it.
DATE = re.search(r"^date_of_all=(\d+)$", (ROOT / "images" / "scripts" / "same-dates.sh").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a build context with everything of the row's bundle, the base image and the Dockerfile included."""
    folder = tmp_path_factory.mktemp("context")
    path = bundle.default_path(ROOT, ROW)
    subprocess.run([sys.executable, "-m", "shoal", "bundle", ROW], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    versions = load(ROOT / "versions.yaml")
    with offline.opened(path, versions, ROW, ROOT) as opened:
        subprocess.run(["gunzip", "-f", str(opened.folder / bundle.BASE)], check=True)
        for name in ("images", "entrypoint", "smddp_core", "modelparallel"):
            ignored = shutil.ignore_patterns("build", "__pycache__", "*.egg-info", "*.so", "tests")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for source, target in (("wheels", "wheelhouse"), ("debs", offline.debs_folder(ROW)), ("base.tar", "base.tar")):
            shutil.move(opened.folder / source, folder / target)
    text = dockerfile.with_debs(render.render(versions, ROW, ROOT), offline.debs_folder(ROW))
    # Nothing that the first build has kept may help the second.
    (folder / "Dockerfile").write_text(re.sub(r"--mount=type=cache,\S+ \\\n *", "", text))
    yield folder
    shutil.rmtree(folder)


def build(context: Path, store: Path) -> tuple[str, dict[str, str]]:
    """Build the row in an empty store; return the image's id and what each path in its layers is."""
    assert DATE is not None
    buildah = ["buildah", "--root", f"{store}/root", "--runroot", f"{store}/run"]
    try:
        subprocess.run([*buildah, "pull", "--quiet", f"docker-archive:{context}/base.tar"], check=True)
        command = [*buildah, "bud", "--isolation", "chroot", "--timestamp", DATE[1], "--layers=false", "--pull-never"]
        command += ["--target", "sagemaker", "--tag", "image", "--iidfile", f"{store}/id", str(context)]
        with (store / "log").open("wb") as log:
            done = subprocess.run(["unshare", "--net", *command], check=False, stdout=log, stderr=log)
        assert done.returncode == 0, (store / "log").read_text()[-2000:]
        subprocess.run([*buildah, "push", "--quiet", "image", f"docker-archive:{store}/image.tar"], check=True)
    finally:
        subprocess.run([*buildah, "rmi", "--all", "--force"], check=False, stdout=subprocess.DEVNULL)
    return (store / "id").read_text(), paths(store / "image.tar")


def paths(image: Path) -> dict[str, str]:
    """Return what each path in the layers of a saved image is: its kind, owner, mode, date and content."""
    found = {}
    with tarfile.open(image) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name.endswith(".tar") and member.isfile() else None
            if stream is None:
                continue
            with tarfile.open(fileobj=stream, mode="r|") as layer:
                for entry in layer:
                    content = layer.extractfile(entry) if entry.isfile() else None
                    digest = hashlib.sha256(content.read()).hexdigest() if content else entry.linkname
                    found[f"{member.name[:12]}/{entry.name}"] = (
                        f"{entry.type!r} {entry.uid}:{entry.gid} {entry.mode:o} {entry.mtime} {digest}"
                    )
    return found


def test_two_builds_have_one_digest(context: Path, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    first, in_first = build(context, tmp_path / "1")
    second, in_second = build(context, tmp_path / "2")
    # Layers are named by their content, so paths are compared without that.
    one = {name.partition("/")[2]: what for name, what in in_first.items()}
    two = {name.partition("/")[2]: what for name, what in in_second.items()}
    assert [name for name in one.keys() | two.keys() if one.get(name) != two.get(name)] == []
    assert first == second
