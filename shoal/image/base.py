"""The operating system an image begins from: pulled, or, where no registry answers, bootstrapped by mmdebstrap."""

import contextlib
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import docker
from docker.errors import APIError, ImageNotFound

from shoal.errors import ShoalError
from shoal.image.children import Children
from shoal.image.host_settings import UBUNTU_SUITES, AptSettings
from shoal.image.render import base_reference
from shoal.image.versions import Base

ORIGIN_LABEL = "dev.shoal.base.origin"
RECIPE_LABEL = "dev.shoal.base.recipe"
KEYRINGS = Path("/usr/share/keyrings")
DATE_OF_ALL = "1577836800"  # as in images/scripts/same-dates.sh
VARIANT = "minbase"
HOST_ONLY = ("etc/apt/apt.conf.d/99mmdebstrap",)
# What Debian's own `slim` images leave out, so that pulled and bootstrapped bases hold the same. Licences stay.
SLIM = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/groff/*",
    "path-exclude=/usr/share/lintian/*",
)


def ensure(
    client: docker.DockerClient, name: str, base: Base, apt: AptSettings, log: Path, children: Children | None = None
) -> str:
    """Make sure the engine has the base image `name`; return where it came from, in words.

    Raises:
        ShoalError: it can neither be pulled nor bootstrapped on this machine.
    """
    reference = base_reference(name)
    try:
        labels = client.images.get(reference).labels
    except ImageNotFound:
        pass
    else:
        if ORIGIN_LABEL not in labels or labels.get(RECIPE_LABEL) == recipe(base):
            return f"there already ({labels.get(ORIGIN_LABEL, base.pull)})"
    try:
        client.images.pull(base.pull).tag(reference)
    except APIError as error:
        pull_error = error.explanation or str(error)
        _bootstrap(client, reference, base, apt, log, pull_error, children or Children())
        archive = f"{_family(base)} {base.suite}"
        return f"bootstrapped from {archive}, signatures checked ({base.pull} cannot be pulled here)"
    return f"pulled {base.pull}"


def _bootstrap(
    client: docker.DockerClient,
    reference: str,
    base: Base,
    apt: AptSettings,
    log: Path,
    pull_error: str,
    children: Children,
) -> None:
    """Pipe mmdebstrap into the engine's import. apt checks the archive's signature against Debian's own keyring."""
    keyring = KEYRINGS / f"{_family(base).lower()}-archive-keyring.gpg"
    if shutil.which("mmdebstrap") is None or not keyring.is_file():
        raise ShoalError(
            f"{base.pull} cannot be pulled ({pull_error}) and cannot be bootstrapped: "
            f"install mmdebstrap and {keyring}, or make a registry reachable",
            exit_code=3,
        )
    command = ["mmdebstrap", f"--variant={VARIANT}", f"--keyring={keyring}"]
    command += [f"--dpkgopt={line}" for line in SLIM]
    command += [f"--aptopt={line}" for line in apt.options]
    # This host's options and a private mirror serve the bootstrap only: neither may travel with the image.
    left_behind = HOST_ONLY if _is_public(apt.mirror) else (*HOST_ONLY, "etc/apt/sources.list")
    command += [f'--customize-hook=rm -f "$1/{path}"' for path in left_behind]
    command += [base.suite, "-", *apt.sources(base.suite)]
    labels = [f"LABEL {ORIGIN_LABEL}=mmdebstrap-{base.suite}", f"LABEL {RECIPE_LABEL}={recipe(base)}"]
    repository, tag = reference.split(":")
    # The same packages make the same file system, byte by byte.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": DATE_OF_ALL}
    with log.open("wb") as stderr:
        bootstrap = children.start(command, stdout=subprocess.PIPE, stderr=stderr, env=environment)
        # Under another tag until mmdebstrap has succeeded: half a file system must not pass for a whole one.
        partial = f"{tag}-partial"
        client.api.import_image_from_stream(bootstrap.stdout, repository=repository, tag=partial, changes=labels)
    try:
        if children.wait(bootstrap) != 0:
            last = (log.read_text(errors="replace").strip() or "no output").splitlines()[-1]
            raise ShoalError(
                f"bootstrapping {_family(base)} {base.suite} failed: {last} (all of it: {log})", exit_code=3
            )
        client.images.get(f"{repository}:{partial}").tag(reference)
    finally:
        with contextlib.suppress(ImageNotFound):
            client.images.remove(f"{repository}:{partial}")


def _family(base: Base) -> str:
    return "Ubuntu" if base.suite in UBUNTU_SUITES else "Debian"


def recipe(base: Base) -> str:
    """Return a hash of how a base is bootstrapped, so that one made in an older way is made anew."""
    return hashlib.sha256(repr((VARIANT, SLIM, HOST_ONLY, base.suite)).encode()).hexdigest()[:12]


def _is_public(mirror: str | None) -> bool:
    return mirror is None or (urlsplit(mirror).hostname or "").endswith(".debian.org")
