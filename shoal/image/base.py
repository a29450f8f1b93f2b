"""The operating system an image begins from: pulled, or, where no registry answers, bootstrapped by mmdebstrap."""

import contextlib
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import docker
from docker.errors import APIError, ImageNotFound

from shoal.errors import ShoalError
from shoal.image.host_settings import AptSettings
from shoal.image.render import base_reference
from shoal.image.versions import Base

ORIGIN_LABEL = "dev.shoal.base.origin"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
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


def ensure(client: docker.DockerClient, name: str, base: Base, apt: AptSettings, log: Path) -> str:
    """Make sure the engine has the base image `name`; return where it came from, in words.

    Raises:
        ShoalError: it can neither be pulled nor bootstrapped on this machine.
    """
    reference = base_reference(name)
    try:
        image = client.images.get(reference)
    except ImageNotFound:
        pass
    else:
        return f"there already ({image.labels.get(ORIGIN_LABEL, base.pull)})"
    try:
        client.images.pull(base.pull).tag(reference)
    except APIError as error:
        _bootstrap(client, reference, base, apt, log, pull_error=error.explanation or str(error))
        return f"bootstrapped from Debian {base.suite}, signatures checked ({base.pull} cannot be pulled here)"
    return f"pulled {base.pull}"


def _bootstrap(
    client: docker.DockerClient, reference: str, base: Base, apt: AptSettings, log: Path, pull_error: str
) -> None:
    """Pipe mmdebstrap into the engine's import. apt checks the archive's signature against Debian's own keyring."""
    if shutil.which("mmdebstrap") is None or not KEYRING.is_file():
        raise ShoalError(
            f"{base.pull} cannot be pulled ({pull_error}) and cannot be bootstrapped: "
            "install mmdebstrap and debian-archive-keyring, or make a registry reachable",
            exit_code=3,
        )
    command = ["mmdebstrap", "--variant=minbase", f"--keyring={KEYRING}"]
    command += [f"--dpkgopt={line}" for line in SLIM]
    command += [f"--aptopt={line}" for line in apt.options]
    # This host's options and a private mirror serve the bootstrap only: neither may travel with the image.
    left_behind = ["etc/apt/apt.conf.d/99mmdebstrap"] + ([] if _is_public(apt.mirror) else ["etc/apt/sources.list"])
    command += [f'--customize-hook=rm -f "$1/{path}"' for path in left_behind]
    command += [base.suite, "-", *apt.sources(base.suite)]
    with log.open("wb") as stderr:
        bootstrap = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
        repository, tag = reference.split(":")
        label = f"LABEL {ORIGIN_LABEL}=mmdebstrap-{base.suite}"
        client.api.import_image_from_stream(bootstrap.stdout, repository=repository, tag=tag, changes=[label])
    if bootstrap.wait() != 0:
        # Half a root file system may have been imported; it must not be taken for a whole one next time.
        with contextlib.suppress(ImageNotFound):
            client.images.remove(reference, force=True)
        last = (log.read_text(errors="replace").strip() or "no output").splitlines()[-1]
        raise ShoalError(f"bootstrapping Debian {base.suite} failed: {last} (all of it: {log})", exit_code=3)


def _is_public(mirror: str | None) -> bool:
    return mirror is None or (urlsplit(mirror).hostname or "").endswith(".debian.org")
