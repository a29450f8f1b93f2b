"""The build host's package settings, read at run time and handed to BuildKit as secrets: in no file of the project, in
no layer of an image.

What is read: pip's configuration (its environment variables included), apt's, the CA bundle, the proxy variables.
"""

import configparser
import contextlib
import functools
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

UBUNTU_SUITES = ("focal", "jammy")
PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
SYSTEM_CA = Path("/etc/ssl/certs/ca-certificates.crt")
# pip options that say where packages come from; all others are the host's own taste.
PIP_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
APT_OPTIONS = re.compile(r"^Acquire::(http|https|Retries|Check-Valid-Until|Check-Date|ForceIPv[46])\b")


@dataclass(frozen=True)
class AptSettings:
    """Where this host's Debian packages come from; None means the public archive (the host is not Debian)."""

    mirror: str | None
    security_mirror: str | None
    options: tuple[str, ...]

    def sources(self, suite: str) -> list[str]:
        """Return sources.list lines of `suite` on this host's mirror; empty for the public archive."""
        if self.mirror is None or suite in UBUNTU_SUITES:  # a mirror of Debian has no Ubuntu
            return []
        lines = [f"deb {self.mirror} {suite} main", f"deb {self.mirror} {suite}-updates main"]
        if self.security_mirror is not None:
            lines.append(f"deb {self.security_mirror} {suite}-security main")
        return lines


@functools.cache
def apt_settings() -> AptSettings:
    """Ask this host's apt for its mirrors and Acquire options; once, for it takes its time over it."""
    if shutil.which("apt-get") is None:
        return AptSettings(None, None, ())
    form = "$(ORIGIN)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)"
    targets = _output(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    options = [line for line in _output(["apt-config", "dump"]) if APT_OPTIONS.match(line)]
    mirrors: dict[bool, str] = {}
    for line in targets:
        origin, codename, component, uri = line.split("|")
        if origin == "Debian" and component == "main":
            mirrors.setdefault(codename.endswith("-security"), uri.rstrip("/"))
    return AptSettings(mirrors.get(False), mirrors.get(True), tuple(options))


def pip_settings() -> str:
    """Return the network part of this host's pip configuration as the text of a pip.conf.

    Local folders (find-links, file: indexes) are left out: a build cannot see them. What they hold reaches it as wheels
    (shoal.image.wheelhouse).
    """
    wanted: dict[str, str] = {}
    for line in _output([sys.executable, "-m", "pip", "config", "list"]):
        name, _, value = line.partition("=")
        option = name.rsplit(".", 1)[-1].strip(":")
        remote = [word for word in value.strip("'\"").split() if not word.startswith(("/", "file:"))]
        if option in PIP_OPTIONS and remote:
            wanted[option] = "\n".join(remote)  # an `:env:` line comes first in the list, and pip lets it win
    parser = configparser.RawConfigParser()
    parser["global"] = wanted
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def ca_bundle(environ: Mapping[str, str]) -> Path | None:
    """Return the CA bundle this host trusts, if it has one."""
    named = [Path(environ[name]) for name in CA_VARIABLES if environ.get(name)]
    return next((path for path in [*named, SYSTEM_CA] if path.is_file()), None)


def proxy_settings(environ: Mapping[str, str]) -> str:
    """Return the proxy variables as NAME='value' lines for a shell, lower and upper case."""
    lines = []
    for name in PROXY_VARIABLES:
        if value := environ.get(name) or environ.get(name.upper()):
            quoted = value.replace("'", "'\\''")
            lines += [f"{name}='{quoted}'", f"{name.upper()}='{quoted}'"]
    return "\n".join(lines)


def apt_configuration(apt: AptSettings, suite: str, has_ca: bool) -> tuple[str, str]:
    """Return the texts of apt.conf and sources.list for a build on `suite`."""
    lines = list(apt.options)
    sources = "".join(f"{line}\n" for line in apt.sources(suite))
    if sources:
        lines += ['Dir::Etc::SourceList "/run/secrets/sources.list";', 'Dir::Etc::SourceParts "/dev/null";']
    if has_ca:
        lines.append('Acquire::https::CAInfo "/run/secrets/ca.pem";')
    return "".join(f"{line}\n" for line in lines), sources


@contextlib.contextmanager
def secrets(suite: str, environ: Mapping[str, str] = os.environ) -> Iterator[list[str]]:
    """Write the settings to a private folder and yield the `--secret` arguments of `docker build`."""
    with TemporaryDirectory(prefix="shoal-secrets-") as folder:  # 0700: proxies and indexes can carry passwords
        yield [word for secret in write_secrets(Path(folder), suite, environ) for word in ("--secret", secret)]


def write_secrets(folder: Path, suite: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Write the settings to `folder`, which should be nobody else's to read; return them as `id=NAME,src=FILE`."""
    ca = ca_bundle(environ)
    apt_conf, sources = apt_configuration(apt_settings(), suite, ca is not None)
    texts = {
        "apt.conf": apt_conf,
        "sources.list": sources,
        "pip.conf": pip_settings(),
        "proxy.env": proxy_settings(environ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    written = [f"id={name},src={folder / name}" for name in texts]
    return written if ca is None else [f"id=ca.pem,src={ca}", *written]


def _output(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []
