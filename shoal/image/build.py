"""Builds one image: base, wheels, Dockerfile, image, measurement, tags, in that order; nothing is done twice."""

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import ImageNotFound
from docker.models.images import Image

from shoal.errors import ShoalError
from shoal.image import base, buildkit, host_settings, measure, pythons, render, wheelhouse
from shoal.image.bundle.offline import Offline
from shoal.image.changes import changes
from shoal.image.children import Children
from shoal.image.content import content_hash
from shoal.image.exclusive import exclusive
from shoal.image.layers import Layer, layers_of
from shoal.image.names import Names, names
from shoal.image.progress import Reporter
from shoal.image.sbom import bill
from shoal.image.versions import Flavour, Row, Versions

__all__ = ["Built", "build", "candidate_of", "content_hash", "prepare", "record_stem", "tags_of"]


@dataclass(frozen=True)
class Built:
    """What `build` made, or found made already."""

    names: Names
    size_bytes: int
    layers: list[Layer]
    measured: dict[str, Any]
    measured_by: str  # the hash of images/probe.py: what an older one did not ask is asked again
    fresh: bool

    def manifest(self) -> dict[str, Any]:
        """Return it as the JSON object that `shoal build --json` prints and `.shoal/<row>.json` keeps."""
        return asdict(self)


def tags_of(versions: Versions, name: str, root: Path, flavour: Flavour) -> Names:
    """Return the tags of the image that today's sources make."""
    return names(versions, name, content_hash(versions, name, root), flavour)


def record_stem(name: str, flavour: str) -> str:
    """Return what the files in .shoal/ about an image begin with."""
    return name if flavour == "sagemaker" else f"{name}-{flavour}"


def candidate_of(stem: str, root: Path) -> str:
    """Return what an image is called until it is measured: clones that share an engine must not share that."""
    return f"shoal-candidate:{stem}-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]}"


def build(
    client: docker.DockerClient,
    versions: Versions,
    name: str,
    root: Path,
    progress: Reporter,
    flavour: Flavour = "sagemaker",
    children: Children | None = None,
    offline: Offline | None = None,
) -> Built:
    """Build row `name` unless an image of the same content is there; return it measured and tagged.

    With `offline`, all that is needed comes from that bundle, and no step has a network.

    Raises:
        ShoalError: a step failed, or the image is not what its row says (it is then left untagged).
        StoppedError: `children` were stopped (nothing is tagged then).
    """
    children = children or Children()
    state = root / ".shoal"
    state.mkdir(exist_ok=True)
    progress.busy("waiting: another shoal builds this image")
    with exclusive(state / f"{record_stem(name, flavour)}.lock", children.check):
        return _build(client, versions, name, root, progress, flavour, children, offline)


def _build(
    client: docker.DockerClient,
    versions: Versions,
    name: str,
    root: Path,
    progress: Reporter,
    flavour: Flavour,
    children: Children,
    offline: Offline | None,
) -> Built:
    row, state, stem = versions.row(name), root / ".shoal", record_stem(name, flavour)
    tags = tags_of(versions, name, root, flavour)
    probe = measure.probe_hash(root)
    there = _image(client, tags.immutable)
    if there is not None and (measured := _record(state / f"{stem}.json", tags, probe)) is not None:
        _check_size(name, row, there.attrs["Size"])
        _tag(there, tags)
        return Built(tags, there.attrs["Size"], layers_of(there), measured, probe, fresh=False)

    # One that is there and has no record here is measured, not built: an immutable tag never moves.
    candidate = tags.immutable if there is not None else candidate_of(stem, root)
    if there is None:
        if offline is None:
            prepare(client, versions, name, root, progress, children)
        else:
            progress.done(f"from the bundle: {offline.install(client, root)}")
        _docker_build(versions, name, root, candidate, flavour, progress, children, offline)
    progress.busy("measure: what is in the image")
    measured = measure.measure(client, candidate, root)
    if wrong := measure.differences(row, measured):
        raise ShoalError("\n".join(f"{name}: {line}" for line in wrong), exit_code=1)
    image = client.images.get(candidate)
    _check_size(name, row, image.attrs["Size"])
    children.check()
    _tag(image, tags)
    if there is None:
        client.images.remove(candidate)  # the name only: the tags above keep the image
    built = Built(tags, image.attrs["Size"], layers_of(image), measured, probe, fresh=there is None)
    _write_records(state, stem, built, image.attrs["Created"])
    return built


def prepare(
    client: docker.DockerClient, versions: Versions, name: str, root: Path, progress: Reporter, children: Children
) -> None:
    """Have the base and the wheels: once, however many rows want them at the same time."""
    row, state = versions.row(name), root / ".shoal"
    progress.busy(f"base: {row.base}")
    with exclusive(state / f"base-{row.base}.lock", children.check):
        apt = host_settings.apt_settings()
        log = state / f"base-{row.base}.log"
        origin = base.ensure(client, row.base, versions.bases[row.base], apt, log, children)
    progress.done(f"base {row.base}: {origin}")
    if row.python != versions.bases[row.base].python:
        progress.busy(f"python: {row.python}")
        python = pythons.fetch(row.python, root, state / f"{name}-python.log", children)
        progress.done(f"Python {row.python}: uv's build, {python.stat().st_size / 1e6:.0f} MB")
    progress.busy("wheels: fetching")
    wheels = wheelhouse.fetch(name, row, root, state / f"{name}-wheels.log", children)
    progress.done(f"wheels: {len(wheels)}, {sum(wheel.stat().st_size for wheel in wheels) / 1e6:.0f} MB")


def _docker_build(
    versions: Versions,
    name: str,
    root: Path,
    tag: str,
    flavour: Flavour,
    progress: Reporter,
    children: Children,
    offline: Offline | None,
) -> None:
    stem = record_stem(name, flavour)
    path = root / ".shoal" / f"{stem}.Dockerfile"
    text = render.render(versions, name, root)
    path.write_text(text if offline is None else offline.dockerfile(text))
    suite = versions.bases[versions.row(name).base].suite
    progress.busy("build: this machine's package settings")
    # Without a network there is nobody to whom this machine's settings would matter.
    settings = host_settings.secrets(suite) if offline is None else contextlib.nullcontext(offline.build_arguments)
    with settings as more:
        arguments = ["--file", str(path), "--tag", tag, "--target", flavour, *more, str(root)]
        buildkit.build(arguments, root / ".shoal" / f"{stem}-build.log", progress, children)


def _write_records(state: Path, stem: str, built: Built, created: str) -> None:
    """Write the manifest, what changed since the one before, and the bill of materials."""
    path = state / f"{stem}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):  # the first build, or a record of an older kind
        note = changes(json.loads(path.read_text()), built.manifest()).note()
        (state / f"{stem}-changes.md").write_text(note)
    path.write_text(json.dumps(built.manifest(), indent=1))
    (state / f"{stem}.cdx.json").write_text(bill(built.names.immutable, created, built.measured))


def _check_size(name: str, row: Row, size_bytes: int) -> None:
    if too_large := measure.over_budget(name, size_bytes, row.size_mb):
        raise ShoalError(too_large, exit_code=1)


def _image(client: docker.DockerClient, tag: str) -> Image | None:
    try:
        return client.images.get(tag)
    except ImageNotFound:
        return None


def _record(manifest: Path, tags: Names, probe: str) -> dict[str, Any] | None:
    """Return what was measured of the image with these tags, if today's probe has been asked."""
    try:
        record = json.loads(manifest.read_text())
    except (OSError, ValueError):
        return None
    if record["names"]["immutable"] != tags.immutable or record.get("measured_by") != probe:
        return None
    measured: dict[str, Any] = record["measured"]
    return measured


def _tag(image: Image, tags: Names) -> None:
    for tag in tags.every:
        image.tag(tag)
