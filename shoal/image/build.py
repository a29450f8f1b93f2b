"""`shoal build ROW`: base, wheels, Dockerfile, image, measurement, tags, in that order; nothing is done twice."""

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import ImageNotFound
from docker.utils.build import exclude_paths

from shoal.errors import ShoalError
from shoal.image import base, buildkit, host_settings, measure, render, wheelhouse
from shoal.image.changes import changes
from shoal.image.names import Names, names
from shoal.image.progress import Progress
from shoal.image.sbom import bill
from shoal.image.versions import Row, Versions


@dataclass(frozen=True)
class Built:
    """What `build` made, or found made already."""

    names: Names
    size_bytes: int
    measured: dict[str, Any]
    measured_by: str  # the hash of images/probe.py: what an older one did not ask is asked again
    fresh: bool

    def manifest(self) -> dict[str, Any]:
        """Return it as the JSON object that `shoal build --json` prints and `.shoal/<row>.json` keeps."""
        return asdict(self)


def content_hash(versions: Versions, name: str, root: Path) -> str:
    """Hash all that goes into the image of a row: its Dockerfile, how its base is made, the files of the build context.

    Of the locks, those of this row only. Wheels are left out: the locks name their hashes.
    """
    row = versions.row(name)
    dockerfile = render.render(versions, name, root) + base.recipe(versions.bases[row.base])
    patterns = (root / ".dockerignore").read_text().splitlines()
    context = exclude_paths(str(root), [*patterns, "images/locks", "wheelhouse"])
    digest = hashlib.sha256(dockerfile.encode())
    for relative in sorted({*context, *(str(path.relative_to(root)) for path in wheelhouse.locks(name, row, root))}):
        path = root / relative
        if path.is_file():
            executable = bool(path.stat().st_mode & 0o100)
            digest.update(f"{relative}\0{executable}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def build(client: docker.DockerClient, versions: Versions, name: str, root: Path, progress: Progress) -> Built:
    """Build row `name` unless an image of the same content is there; return it measured and tagged.

    Raises:
        ShoalError: a step failed, or the image is not what its row says (it is then left untagged).
    """
    row = versions.row(name)
    dockerfile = render.render(versions, name, root)
    tags = names(row, content_hash(versions, name, root))
    state = root / ".shoal"
    state.mkdir(exist_ok=True)
    probe = measure.probe_hash(root)
    if (built := _present(client, tags, state / f"{name}.json", probe)) is not None:
        _check_size(name, row, built.size_bytes)
        return built

    apt = host_settings.apt_settings()
    progress.busy(f"base {row.base}")
    origin = base.ensure(client, row.base, versions.bases[row.base], apt, state / f"{name}-base.log")
    progress.done(f"base {row.base}: {origin}")
    progress.busy("fetching wheels")
    folder = wheelhouse.fetch(name, row, root, state / f"{name}-wheels.log")
    wheels = list(folder.glob("*.whl"))
    progress.done(f"wheels: {len(wheels)}, {sum(wheel.stat().st_size for wheel in wheels) / 1e6:.0f} MB")

    candidate = f"shoal-candidate:{name}"
    log = state / f"{name}-build.log"
    _docker_build(dockerfile, candidate, versions.bases[row.base].suite, root, log, progress)
    progress.busy("measuring")
    measured = measure.measure(client, candidate, root)
    if wrong := measure.differences(row, measured):
        raise ShoalError("\n".join(f"{name}: {line}" for line in wrong), exit_code=1)
    image = client.images.get(candidate)
    _check_size(name, row, image.attrs["Size"])
    for tag in asdict(tags).values():
        image.tag(tag)
    client.images.remove(candidate)  # the name only: the tags above keep the image
    built = Built(tags, image.attrs["Size"], measured, probe, fresh=True)
    _write_records(state, name, built, image.attrs["Created"])
    return built


def _write_records(state: Path, name: str, built: Built, created: str) -> None:
    """Write the manifest, what changed since the one before, and the bill of materials."""
    path = state / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):  # the first build, or a record of an older kind
        note = changes(json.loads(path.read_text()), built.manifest()).note()
        (state / f"{name}-changes.md").write_text(note)
    path.write_text(json.dumps(built.manifest(), indent=1))
    (state / f"{name}.cdx.json").write_text(bill(built.names.immutable, created, built.measured))


def _check_size(name: str, row: Row, size_bytes: int) -> None:
    if too_large := measure.over_budget(name, size_bytes, row.size_mb):
        raise ShoalError(too_large, exit_code=1)


def _present(client: docker.DockerClient, tags: Names, manifest: Path, probe: str) -> Built | None:
    """Return the image of the same content hash, if the engine has it and its measurement is on record."""
    try:
        image = client.images.get(tags.immutable)
        record = json.loads(manifest.read_text())
    except (ImageNotFound, OSError, ValueError):
        return None
    if record["names"]["immutable"] != tags.immutable or record.get("measured_by") != probe:
        return None
    for tag in (tags.short, tags.full):
        image.tag(tag)
    return Built(tags, image.attrs["Size"], record["measured"], probe, fresh=False)


def _docker_build(dockerfile: str, tag: str, suite: str, root: Path, log: Path, progress: Progress) -> None:
    path = root / ".shoal" / "Dockerfile"
    path.write_text(dockerfile)
    with host_settings.secrets(suite) as secret_arguments:
        arguments = ["--file", str(path), "--tag", tag, "--target", "sagemaker", *secret_arguments, str(root)]
        buildkit.build(arguments, log, progress)
