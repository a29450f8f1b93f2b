"""The archive from which an image is built without a network: written once, checked whole before anything is used.

A bundle is an uncompressed tar: manifest.json first, then the members it lists, each with its SHA-256:
  wheels/<folder>/*.whl    what goes to wheelhouse/<folder>/
  debs/                    the part of Debian's archive that the apt steps need (shoal.image.bundle.debs)
  base.tar.gz              the base image, as `docker save` writes it
"""

import contextlib
import gzip
import hashlib
import io
import platform
import re
import tarfile
from pathlib import Path
from typing import Annotated, Literal

import docker
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from shoal.errors import ShoalError
from shoal.image import wheelhouse
from shoal.image.base import recipe
from shoal.image.bundle import dockerfile
from shoal.image.render import base_reference, render
from shoal.image.versions import Versions

MANIFEST = "manifest.json"
BASE = "base.tar.gz"
_OTHER = {
    "row": "another row",
    "machine": "another kind of machine",
    "base": "another base",
    "base_recipe": "a base made in another way",
    "locks": "other versions of Python packages",
    "apt": "other Debian packages",
}
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 1 << 24

# No member may leave the folder it is unpacked to: no absolute path, no `..`.
Member = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][^/\x00]*(/[A-Za-z0-9][^/\x00]*)*$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Inputs(_Strict):
    """What a bundle was made for. A build of anything else needs another one."""

    row: str
    machine: str
    base: str
    base_recipe: str
    locks: dict[str, Sha256]
    apt: list[list[str]]


class Manifest(_Strict):
    """What is in a bundle."""

    format: Literal[1]
    inputs: Inputs
    base_image: str
    members: dict[Member, Sha256]


def inputs(versions: Versions, name: str, root: Path) -> Inputs:
    """Return what a bundle for row `name` must have been made for, as the repository is now.

    Raises:
        ShoalError: its build needs something that bundles do not hold.
    """
    row = versions.row(name)
    text = render(versions, name, root)
    if other := dockerfile.unbundled(text):
        raise ShoalError(
            f"{name}: its build also reads {', '.join(other)}: bundles hold wheels and Debian packages only"
        )
    return Inputs(
        row=name,
        machine=platform.machine(),
        base=row.base,
        base_recipe=recipe(versions.bases[row.base]),
        locks={path.name: _sha256(path) for path in wheelhouse.locks(name, row, root)},
        apt=dockerfile.apt_steps(text),
    )


def default_path(root: Path, name: str) -> Path:
    """Return where the bundle of row `name` is, unless the user says otherwise."""
    return root / ".shoal" / f"{name}.bundle.tar"


def partial_path(output: Path) -> Path:
    """Return where a bundle is while it is being written."""
    return output.with_name(f"{output.name}.partial")


def wheels(versions: Versions, name: str, root: Path) -> dict[str, Path]:
    """Return the wheels that the locks of row `name` name, by member; the wheelhouse may hold older ones too."""
    locked = "".join(path.read_text() for path in wheelhouse.locks(name, versions.row(name), root))
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", locked))
    folders = dockerfile.wheel_folders(render(versions, name, root))
    found = [wheel for folder in folders for wheel in (root / "wheelhouse" / folder).glob("*.whl")]
    return {f"wheels/{one.parent.name}/{one.name}": one for one in found if _sha256(one) in hashes}


def save_base(client: docker.DockerClient, base: str, into: Path) -> str:
    """Save the base image `base` to the file `into`; return its id."""
    image = client.images.get(base_reference(base))
    with into.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
        for chunk in image.save(named=True):
            packed.write(chunk)
    return str(image.id)


def write(files: dict[str, Path], made_for: Inputs, base_image: str, output: Path) -> str:
    """Write `files`, by member, to the bundle `output`; return the bundle's SHA-256. Nothing stays if it fails.

    Raises:
        ShoalError: it cannot be written.
    """
    partial = partial_path(output)
    try:
        members = {name: _sha256(path) for name, path in sorted(files.items())}
        manifest = Manifest(format=1, inputs=made_for, base_image=base_image, members=members)
        with tarfile.open(partial, "w") as archive:
            text = manifest.model_dump_json(indent=1).encode()
            archive.addfile(_entry(MANIFEST, len(text)), io.BytesIO(text))
            for name in members:
                with files[name].open("rb") as stream:
                    archive.addfile(_entry(name, files[name].stat().st_size), stream)
        digest = _sha256(partial)
        partial.replace(output)
    except OSError as error:
        raise ShoalError(f"{output}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return digest


def unpack(path: Path, wanted: Inputs, into: Path) -> Manifest:
    """Check the bundle `path` whole while unpacking it to `into`, an empty folder; return its manifest.

    Raises:
        ShoalError: it cannot be read, is not whole, is not what its manifest says, or was made for something else.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            manifest = _manifest(path, archive)
            _check_inputs(path, manifest.inputs, wanted)
            _check_members(path, archive, manifest, into)
    except tarfile.TarError as error:
        raise ShoalError(f"{path}: not a whole bundle ({error}): copy it again, or make it anew") from error
    except OSError as error:
        hint = (
            "" if path.exists() else f": make one with `shoal bundle {wanted.row}`, or say where it is: --bundle FILE"
        )
        raise ShoalError(f"{path}: cannot be unpacked: {error.strerror or error}{hint}") from error
    return manifest


def _manifest(path: Path, archive: tarfile.TarFile) -> Manifest:
    first = archive.next()
    stream = archive.extractfile(first) if first is not None and first.isfile() else None
    if first is None or stream is None or first.name != MANIFEST or first.size > _LARGEST_MANIFEST:
        raise ShoalError(f"{path}: not a bundle: it does not begin with {MANIFEST}: `shoal bundle` makes them")
    try:
        return Manifest.model_validate_json(stream.read())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ShoalError(f"{path}: {MANIFEST}: {where}: {problem['msg']}: make the bundle anew") from error


def _check_inputs(path: Path, found: Inputs, wanted: Inputs) -> None:
    for key in Inputs.model_fields:
        was, now = getattr(found, key), getattr(wanted, key)
        if was != now:
            values = f" ({was}, not {now})" if isinstance(was, str) else ""
            hint = f"make one of this clone with `shoal bundle {wanted.row}`, where the network is"
            raise ShoalError(f"{path}: made for {_OTHER[key]}{values}: {hint}")


def _check_members(path: Path, archive: tarfile.TarFile, manifest: Manifest, into: Path) -> None:
    missing = dict(manifest.members)
    for entry in archive:
        if entry.name == MANIFEST and entry.offset == 0:
            continue
        expected = missing.pop(entry.name, None)
        stream = archive.extractfile(entry) if entry.isfile() else None
        if expected is None or stream is None:
            raise ShoalError(f"{path}: {entry.name}: not in its manifest: the bundle was altered, make it anew")
        target = into / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with target.open("wb") as copy:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                copy.write(chunk)
        if digest.hexdigest() != expected:
            raise ShoalError(
                f"{path}: {entry.name}: SHA-256 is {digest.hexdigest()}, its manifest says {expected}: "
                "the bundle was altered, copy it again or make it anew"
            )
    if missing:
        raise ShoalError(f"{path}: ends without {sorted(missing)[0]}: the bundle is not whole, copy it again")


def _entry(name: str, size: int) -> tarfile.TarInfo:
    """Return a tar header without anything of this machine: no owner, no time."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
