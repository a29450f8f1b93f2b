"""No secret is in any layer, also not in one whose files a later layer removes, nor in the history."""

import os
import re
import subprocess
import sys
from pathlib import Path

import docker
import pytest
from saved import Found, Pattern, search

from shoal.image import host_settings

pytestmark = pytest.mark.image

ROOT = Path(__file__).resolve().parents[4]
MACHINE = "this machine's settings"
PATTERNS = {
    "private key": Pattern(
        (b"PRIVATE KEY-----",),
        re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----\s+(?:[\w-]+: .*\s+)*[A-Za-z0-9+/=]{40}"),
    ),
    "AWS key": Pattern((b"AKIA", b"ASIA"), re.compile(rb"(?<![A-Za-z0-9/+])A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9/+=])")),
    "token": Pattern(
        (b"ghp_", b"gho_", b"ghs_", b"github_pat_", b"glpat-", b"hf_", b"xoxb-", b"xoxp-"),
        re.compile(rb"gh[pos]_[A-Za-z0-9]{36}|github_pat_\w{22,}|glpat-[\w-]{20}|hf_[A-Za-z]{34}|xox[bp]-\d{8}"),
    ),
    "password in an address": Pattern(
        (b"http://", b"https://"), re.compile(rb"https?://[\w.%+-]{1,40}:[^\s/@:{}<>'\"%$]{3,60}@[\w-]+\.")
    ),
}
CREDENTIALS = re.compile(
    r"/(\.netrc|\.pypirc|\.git-credentials|\.docker/config\.json|\.aws/credentials|pip\.conf|\.git/config"
    r"|id_(rsa|ed25519|ecdsa)|ssh_host_\w+_key)$"
)
# Said in documentation, or a library's published test vectors.
KNOWN = re.compile(r"EXAMPLE$|://(?:john%40example\.com|user(?:name)?):pass(?:word)?@")
KNOWN_FILES = re.compile(r"/libgnutls\.so\.[\d.]+$")


def needles() -> list[bytes]:
    """Return what of this machine's package settings would give it away."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = [str(ROOT)]
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        if name.rsplit(".", 1)[-1] in ("index-url", "extra-index-url", "find-links", "proxy", "trusted-host"):
            found += value.strip("'\"").split()
    found += [os.environ[name] for name in os.environ if name.lower() in host_settings.PROXY_VARIABLES[:3]]
    return [needle.removeprefix("file://").encode() for needle in found]


@pytest.fixture(scope="session")
def found(client: docker.DockerClient, image: str) -> list[Found]:
    """Search the saved image once, for everything."""
    words = needles()
    # Whole words: a clone in /tmp/x is not what '/tmp/xyz' of Python's own library gives away.
    machine = Pattern(tuple(words), re.compile(rb"(?:%s)(?![\w.-])" % b"|".join(map(re.escape, words))))
    hits = search(client, image, {**PATTERNS, MACHINE: machine}, CREDENTIALS)
    return [hit for hit in hits if not KNOWN.search(hit.text) and not KNOWN_FILES.search(f"/{hit.path}")]


@pytest.mark.parametrize("what", PATTERNS)
def test_no_secret_in_any_layer(found: list[Found], what: str) -> None:
    assert [hit for hit in found if hit.what == what] == []


def test_no_file_of_credentials_in_any_layer(found: list[Found]) -> None:
    assert [hit for hit in found if hit.what == "name"] == []


def test_this_machine_s_settings_are_not_in_the_image(found: list[Found]) -> None:
    assert [hit for hit in found if hit.what == MACHINE] == []


def test_the_environment_names_no_secret(client: docker.DockerClient, image: str) -> None:
    names = [setting.partition("=")[0] for setting in client.images.get(image).attrs["Config"]["Env"]]
    assert [name for name in names if re.search(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$|PROXY$", name.upper())] == []


def test_no_build_argument_is_in_the_history(client: docker.DockerClient, image: str) -> None:
    """`|2 A=x B=y /bin/sh -c` is how an engine writes down what --build-arg passed."""
    assert [entry for entry in client.images.get(image).history() if entry["CreatedBy"].startswith("|")] == []
